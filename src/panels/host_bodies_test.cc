// SPDX-License-Identifier: Apache-2.0

// The bodies of panels/test_bodies.h for what this processor has.

#include <algorithm>

#include <gtest/gtest.h>

#include "base/cpu_info.h"
#include "panels/test_bodies.h"
#include "panels/test_dot_case.h"

namespace moekit::panels {

namespace {

constexpr Isa kIsas[] = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAmx};

bool has(Isa isa) {
  return static_cast<int>(isa) <= static_cast<int>(base::detect_cpu().isa);
}

}  // namespace

const std::vector<NamedBody>& bodies_under_test() {
  static const std::vector<NamedBody> bodies = [] {
    std::vector<NamedBody> all;
    for (const Isa isa : kIsas) {
      if (has(isa)) {
        all.push_back({std::string(isa_name(isa)), &body_for(isa)});
      }
    }
#if defined(__x86_64__)
    if (has(Isa::kAvx512)) {
      all.push_back({"avx512 digits", &kAvx512DigitBody});
    }
    if (base::detect_cpu().avx_vnni) {
      all.push_back({"avx2 vnni", &kAvx2VnniBody});
    }
#endif
    return all;
  }();
  return bodies;
}

const std::vector<std::string>& testable_isas() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Isa isa : kIsas) {
      if (has(isa)) {
        all.emplace_back(isa_name(isa));
      }
    }
    return all;
  }();
  return names;
}

std::string select_body(const std::string& isa) {
  return "cpu:" + isa;
}

// Exact sums: what adds them in 16 bits and what adds them in 32 differ in no bit.
TEST(Bodies, BothFormsOfAvx2HaveTheSameBits) {
#if defined(__x86_64__)
  if (!base::detect_cpu().avx_vnni) {
    GTEST_SKIP() << "this processor lacks AVX-VNNI";
  }
  int64_t judged = 0;
  for (const Panel16Shape& shape : kShapes) {
    const DotCase dots(shape, kAvx2Body.max_tokens);
    for (int64_t count = 1; count <= kAvx2Body.max_tokens; ++count, ++judged) {
      EXPECT_EQ(dots.dot(kAvx2Body, 0, count), dots.dot(kAvx2VnniBody, 0, count));
    }
  }
  EXPECT_GE(judged, 4 * 15);
#else
  GTEST_SKIP() << "bodies of x86-64";
#endif
}

// The tests run what the processor has; what it lacks is reported once, here.
TEST(ExpertSteps, EveryInstructionSetRanHere) {
  ASSERT_GE(testable_isas().size(), 1U);
  for (const char* isa : {"avx2", "avx512", "amx"}) {
    if (std::find(testable_isas().begin(), testable_isas().end(), isa) == testable_isas().end()) {
      GTEST_SKIP() << isa << " bodies: this processor or system lacks it";
    }
  }
}

}  // namespace moekit::panels
