// SPDX-License-Identifier: Apache-2.0
#include "jit/compile.h"

#include <charconv>
#include <chrono>
#include <cstring>

#include "base/text.h"

namespace moekit::jit {
namespace {

constexpr NvrtcResult kSuccess = 0;
constexpr NvrtcResult kInvalidOption = 5;  // NVRTC_ERROR_INVALID_OPTION
constexpr NvrtcResult kCompilation = 6;    // NVRTC_ERROR_COMPILATION

/// A program that is destroyed on every way out.
class Program {
 public:
  explicit Program(const NvrtcTable& nvrtc) : nvrtc_(nvrtc) {}

  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  ~Program() {
    if (handle != nullptr) {
      nvrtc_.destroy_program(&handle);
    }
  }

  NvrtcProgram handle = nullptr;

 private:
  const NvrtcTable& nvrtc_;
};

Status failure(const NvrtcTable& nvrtc, std::string_view call, NvrtcResult result) {
  return internal_error(base::cat(
      "NVRTC ", nvrtc.version_text(), ": ", call, " failed: ", nvrtc.get_error_string(result)));
}

Result<std::string> program_log(const NvrtcTable& nvrtc, NvrtcProgram program) {
  std::size_t size = 0;
  if (const NvrtcResult result = nvrtc.get_log_size(program, &size); result != kSuccess) {
    return failure(nvrtc, "get log size", result);
  }
  std::string log(size, '\0');
  if (const NvrtcResult result = nvrtc.get_log(program, log.data()); result != kSuccess) {
    return failure(nvrtc, "get log", result);
  }
  log.resize(std::strlen(log.c_str()));  // the size counts the closing zero
  return log;
}

/// The first line that says `error`, else the whole log.
std::string_view first_error(std::string_view log) {
  const std::size_t at = log.find("error");
  if (at == std::string_view::npos) {
    return log;
  }
  const std::size_t begin = log.rfind('\n', at) + 1;  // npos + 1 is 0
  return log.substr(begin, log.find('\n', at) - begin);
}

Status compile_failure(const NvrtcTable& nvrtc,
                       const ImageRequest& request,
                       NvrtcResult result,
                       std::string_view log) {
  if (result == kInvalidOption) {
    return unsupported(base::cat("NVRTC ",
                                 nvrtc.version_text(),
                                 " does not take the options of ",
                                 request.kernel,
                                 " for ",
                                 request.arch,
                                 ": ",
                                 first_error(log)));
  }
  if (result == kCompilation) {
    return internal_error(base::cat(
        "kernel ", request.kernel, " does not compile for ", request.arch, ": ", first_error(log)));
  }
  return failure(nvrtc, base::cat("compiling ", request.kernel), result);
}

std::string compiled_text(const ResolvedRequest& resolved) {
  std::string text;
  for (const SourceFile& file : resolved.sources) {
    text += base::cat("// ==== ", file.name, " ====\n", file.text);
  }
  text += base::cat("// ==== prelude ====\n", resolved.request.prelude);
  return text;
}

Status create(const NvrtcTable& nvrtc, const ResolvedRequest& resolved, Program& program) {
  // Sources lie in arrays of bytes without a closing zero; the compiler wants C strings.
  std::vector<std::string> texts;
  std::vector<std::string> names;
  for (const SourceFile& file : resolved.sources) {
    texts.emplace_back(file.text);
    names.emplace_back(file.name);
  }
  std::vector<const char*> text_pointers;
  std::vector<const char*> name_pointers;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    text_pointers.push_back(texts[i].c_str());
    name_pointers.push_back(names[i].c_str());
  }
  const std::string file_name = resolved.request.kernel + ".cu";
  const NvrtcResult result = nvrtc.create_program(&program.handle,
                                                  resolved.request.prelude.c_str(),
                                                  file_name.c_str(),
                                                  static_cast<int>(texts.size()),
                                                  text_pointers.data(),
                                                  name_pointers.data());
  return result == kSuccess ? Status() : failure(nvrtc, "create program", result);
}

/// The number right before `word`, or 0.
std::int64_t number_before(std::string_view line, std::string_view word) {
  const std::size_t end = line.find(word);
  if (end == std::string_view::npos) {
    return 0;
  }
  std::size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') {
    --begin;
  }
  std::int64_t value = 0;
  std::from_chars(line.data() + begin, line.data() + end, value);
  return value;
}

}  // namespace

void read_ptxas_log(std::string_view log, ImageFacts& facts) {
  while (!log.empty()) {
    const std::size_t end = log.find('\n');
    const std::string_view line = log.substr(0, end);
    facts.stack_bytes += number_before(line, " bytes stack frame");
    facts.spill_store_bytes += number_before(line, " bytes spill stores");
    facts.spill_load_bytes += number_before(line, " bytes spill loads");
    facts.registers = std::max(facts.registers, number_before(line, " registers"));
    facts.smem_bytes = std::max(facts.smem_bytes, number_before(line, " bytes smem"));
    log = end == std::string_view::npos ? std::string_view() : log.substr(end + 1);
  }
}

Result<Image> compile_image(const NvrtcTable& nvrtc, const ResolvedRequest& resolved) {
  const ImageRequest& request = resolved.request;
  const auto begin = std::chrono::steady_clock::now();
  Program program(nvrtc);
  MOEKIT_RETURN_IF_ERROR(create(nvrtc, resolved, program));
  const std::vector<std::string> options = compile_options(request);
  std::vector<const char*> option_pointers;
  for (const std::string& option : options) {
    option_pointers.push_back(option.c_str());
  }
  const NvrtcResult result = nvrtc.compile_program(
      program.handle, static_cast<int>(option_pointers.size()), option_pointers.data());
  MOEKIT_ASSIGN_OR_RETURN(const std::string log, program_log(nvrtc, program.handle));
  if (result != kSuccess) {
    return compile_failure(nvrtc, request, result, log);
  }
  Image image;
  std::size_t size = 0;
  if (const NvrtcResult got = nvrtc.get_cubin_size(program.handle, &size); got != kSuccess) {
    return failure(nvrtc, "get cubin size", got);
  }
  image.cubin.resize(size);
  if (const NvrtcResult got = nvrtc.get_cubin(program.handle, image.cubin.data());
      got != kSuccess) {
    return failure(nvrtc, "get cubin", got);
  }
  image.source = compiled_text(resolved);
  image.facts.kernel = request.kernel;
  image.facts.entry = request.entry;
  image.facts.arch = request.arch;
  image.facts.image_id = resolved.image_id;
  image.facts.nvrtc_version = nvrtc.version_text();
  image.facts.options = options;
  // Machine code runs on every driver of the compiler's major version (CUDA compatibility guide,
  // minor version compatibility) and on later ones.
  image.facts.min_driver = nvrtc.major * 1000;
  read_ptxas_log(log, image.facts);
  image.facts.compile_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                               std::chrono::steady_clock::now() - begin)
                               .count();
  return image;
}

}  // namespace moekit::jit
