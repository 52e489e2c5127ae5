// SPDX-License-Identifier: Apache-2.0
#pragma once

// For tests: a run-time compiler that records every call and turns a source into bytes that depend
// on source, headers and options alone, as the real one does. State is per process, because the
// table holds plain function pointers.

#include <chrono>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "base/text.h"
#include "jit/nvrtc_table.h"

namespace moekit::jit {

class NvrtcFake {
 public:
  /// Forgets everything and returns a table of the fake's functions.
  static NvrtcTable table(int major = 13, int minor = 0) {
    State& state = instance();
    const std::lock_guard lock(state.mutex);
    state.calls.clear();
    state.compile_result = 0;
    state.compile_ms = 0;
    state.log = kLog;
    return {.version = version,
            .create_program = create_program,
            .destroy_program = destroy_program,
            .compile_program = compile_program,
            .get_cubin_size = get_cubin_size,
            .get_cubin = get_cubin,
            .get_log_size = get_log_size,
            .get_log = get_log,
            .get_error_string = [](NvrtcResult) { return "fake error"; },
            .major = major,
            .minor = minor,
            .path = "fake"};
  }

  /// Names of the calls since table().
  static std::vector<std::string> calls() {
    const std::lock_guard lock(instance().mutex);
    return instance().calls;
  }

  static void fail_with(NvrtcResult result, std::string log) {
    const std::lock_guard lock(instance().mutex);
    instance().compile_result = result;
    instance().log = std::move(log);
  }

  /// What compilations say from now on, of registers and shared memory among others.
  static void set_log(std::string log) { fail_with(0, std::move(log)); }

  /// How long a compilation takes: room for races.
  static void take(int milliseconds) {
    const std::lock_guard lock(instance().mutex);
    instance().compile_ms = milliseconds;
  }

  /// What `table` would make of a program.
  static std::string cubin_of(const std::string& source, const std::vector<std::string>& options) {
    std::string cubin = "fake cubin ";
    for (const std::string& option : options) {
      cubin += option + " ";
    }
    return cubin + base::sha256_hex(source) + std::string(4096, '.');
  }

 private:
  // The form of NVRTC 13.0's log under --ptxas-options=-v.
  static constexpr const char* kLog =
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"
      "ptxas info    : Function properties for k\n"
      "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 32 registers, used 1 barriers, 128 bytes smem\n";

  struct Program {
    std::string source;
    std::string cubin;
    std::string log;
  };

  struct State {
    std::mutex mutex;
    std::vector<std::string> calls;
    NvrtcResult compile_result = 0;
    int compile_ms = 0;
    std::string log;
  };

  static State& instance() {
    static State state;
    return state;
  }

  static void record(const char* call) {
    const std::lock_guard lock(instance().mutex);
    instance().calls.emplace_back(call);
  }

  static Program& program_of(NvrtcProgram handle) { return *static_cast<Program*>(handle); }

  static NvrtcResult version(int* major, int* minor) {
    record("version");
    *major = 13;
    *minor = 0;
    return 0;
  }

  static NvrtcResult create_program(NvrtcProgram* program,
                                    const char* source,
                                    const char*,
                                    int num_headers,
                                    const char* const* headers,
                                    const char* const* names) {
    record("create_program");
    auto* made = new Program{};
    made->source = source;
    for (int i = 0; i < num_headers; ++i) {
      made->source += base::cat("\n", names[i], "\n", headers[i]);
    }
    *program = made;
    return 0;
  }

  static NvrtcResult destroy_program(NvrtcProgram* program) {
    record("destroy_program");
    delete static_cast<Program*>(*program);
    *program = nullptr;
    return 0;
  }

  static NvrtcResult compile_program(NvrtcProgram program,
                                     int num_options,
                                     const char* const* options) {
    record("compile_program");
    int milliseconds = 0;
    NvrtcResult result = 0;
    {
      const std::lock_guard lock(instance().mutex);
      milliseconds = instance().compile_ms;
      result = instance().compile_result;
      program_of(program).log = instance().log;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    program_of(program).cubin =
        cubin_of(program_of(program).source, {options, options + num_options});
    return result;
  }

  static NvrtcResult get_cubin_size(NvrtcProgram program, std::size_t* size) {
    *size = program_of(program).cubin.size();
    return 0;
  }

  static NvrtcResult get_cubin(NvrtcProgram program, char* cubin) {
    const std::string& bytes = program_of(program).cubin;
    std::memcpy(cubin, bytes.data(), bytes.size());
    return 0;
  }

  static NvrtcResult get_log_size(NvrtcProgram program, std::size_t* size) {
    *size = program_of(program).log.size() + 1;
    return 0;
  }

  static NvrtcResult get_log(NvrtcProgram program, char* log) {
    const std::string& text = program_of(program).log;
    std::memcpy(log, text.c_str(), text.size() + 1);
    return 0;
  }
};

}  // namespace moekit::jit
