// SPDX-License-Identifier: Apache-2.0

// The bodies of emulated/test_machine.h, and what this program's tests run.

#define detect_cpu detect_real_cpu
#include "base/cpu_info.cc"
#undef detect_cpu

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "panels/emulated/test_machine.h"
#include "panels/test_bodies.h"

namespace moekit::base {

// What Linux has to say about tiles is not asked.
CpuInfo detect_cpu() noexcept {
  CpuInfo info = detect_real_cpu();
  info.isa = CpuIsa::kAmx;
  return info;
}

}  // namespace moekit::base

namespace moekit::panels {

namespace {

// Where `avx512` plans run the body of digits.
std::atomic<bool> prefers_digits = false;

constexpr std::pair<const char*, const char*> kDevices[] = {
    {"avx512_emulated", "cpu:avx512"},
    {"avx512_digits_emulated", "cpu:avx512"},
    {"amx_emulated", "cpu:amx"},
};

}  // namespace

const Body& body_for(Isa isa) noexcept {
  switch (isa) {
    case Isa::kAmx:
      return kEmulatedAmxBody;
    case Isa::kAvx512:
      return kEmulatedAvx512Body;
    default:
      return kPortableBody;
  }
}

const Body& running_body(Isa isa, ExecutionFamily family) noexcept {
  if (isa == Isa::kAmx && family == ExecutionFamily::kDirect) {
    return kEmulatedAmxDirectBody;
  }
  return isa == Isa::kAvx512 && prefers_digits ? kEmulatedAvx512DigitBody : body_for(isa);
}

const std::vector<NamedBody>& bodies_under_test() {
  static const std::vector<NamedBody> bodies{{"avx512_emulated", &kEmulatedAvx512Body},
                                             {"avx512_digits_emulated", &kEmulatedAvx512DigitBody},
                                             {"amx_emulated", &kEmulatedAmxBody}};
  return bodies;
}

const std::vector<std::string>& testable_isas() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& [name, device] : kDevices) {
      all.emplace_back(name);
    }
    return all;
  }();
  return names;
}

std::string select_body(const std::string& isa) {
  prefers_digits = isa == "avx512_digits_emulated";
  for (const auto& [name, device] : kDevices) {
    if (name == isa) {
      return device;
    }
  }
  ADD_FAILURE() << isa << " is no name of testable_isas";
  return "cpu:portable";
}

}  // namespace moekit::panels
