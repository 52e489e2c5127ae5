// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "moekit/verify.h"

#include "runtime/verify_quirks.h"

namespace moekit {
namespace {

constexpr std::string_view kLeast = "recipe=w4a16_nvfp4 h=64 i=32 e=8 k=2 m=3";

// kLeast with one word replaced, or added where its key is not there.
std::string with_word(const std::string& word) {
  const std::string key = " " + word.substr(0, word.find('=')) + "=";
  std::string line = " " + std::string(kLeast);
  const std::size_t at = line.find(key);
  if (at == std::string::npos) {
    return line + " " + word;
  }
  const std::size_t end = line.find(' ', at + 1);
  return line.replace(at, end == std::string::npos ? end : end - at, " " + word);
}

TEST(VerifyCase, LeastLineAndItsDefaults) {
  const Result<VerifyCase> c = parse_verify_case(kLeast);
  ASSERT_TRUE(c.has_value()) << c.status().to_string();
  EXPECT_EQ(c->problem.hidden_size, 64);
  EXPECT_EQ(c->problem.num_tokens, 3);
  EXPECT_EQ(c->seed, 1U);
  EXPECT_EQ(c->quirk, "none");
  EXPECT_EQ(*verify_case_line(*c),
            "recipe=w4a16_nvfp4 h=64 i=32 e=8 k=2 m=3 seed=1 activation=silu quirk=none");
}

TEST(VerifyCase, EveryFieldRoundTrips) {
  VerifyCase c;
  c.num_tokens = 5;
  c.seed = 0xFFFFFFFFFFFFFFFFU;
  c.quirk = "wide_scales+f32_bias+masked_logits+nan_token+strided+chunked";
  Problem& p = c.problem;
  p.num_tokens = 77;
  p.num_experts = 12;
  p.top_k = 3;
  p.hidden_size = 24;
  p.intermediate_size = 16;
  p.recipe = Recipe::kW4a16Mxfp4;
  p.activation = {ActivationKind::kSwigluOai, 0.1F, -1.7F, 1e-9F, {}, {}};
  p.row_order = RowOrder::kInterleaved;
  p.gate_up_bias = true;
  p.down_bias = true;
  p.routed_scaling = 2.827F;
  p.routed_scaling_place = ScalingPlace::kSum;
  p.router_weight_on_input = true;
  p.io_dtype = DType::kF16;
  p.shared = SharedInput::kIo;
  p.combine_order = CombineOrder::kExpert;
  p.router_experts = 16;
  p.expert_map = true;
  p.routing = Routing{Scoring::kSigmoid, 16, 3, 4, 2, true, 2.5F, true};
  p.max_workspace_bytes = 1 << 20;
  p.allow_atomics = true;
  p.batch_invariant = true;
  c.overrides = {ExecutionFamily::kGrouped, 32, "m64n32", true, true};
  const std::string line = *verify_case_line(c);
  const Result<VerifyCase> back = parse_verify_case(line);
  ASSERT_TRUE(back.has_value()) << line << "\n" << back.status().to_string();
  EXPECT_EQ(back->problem, p) << line;
  EXPECT_EQ(back->overrides, c.overrides) << line;
  EXPECT_EQ(back->num_tokens, 5);
  EXPECT_EQ(back->seed, c.seed);
  EXPECT_EQ(back->quirk, c.quirk);
  EXPECT_EQ(*verify_case_line(*back), line);
  p.activation = {ActivationKind::kSitu, {}, {}, {}, 3.0F, 20.5F};
  EXPECT_EQ(parse_verify_case(*verify_case_line(c))->problem, p);
}

TEST(VerifyCase, RefusesWhatItCannotRead) {
  const char* const bad[] = {"",
                             "recipe=w4a16_nvfp4 h=64 i=32 e=8 k=2",  // no m
                             "recipe=w16a16 h=8 i=8 e=8 k=2 m=3 m=3",
                             "bogus=1",
                             "m",
                             "seed=x",
                             "m=-1",
                             "h=63",
                             "recipe=w5a16",
                             "limit=",
                             "bias=some",
                             "scaling=2.5",
                             "scaling=2.5@middle",
                             "routing=softmax,groups:4",
                             "routing=softmax,sideways",
                             "quirk=unheard_of",
                             "quirk=zero_x+large_x",
                             "map=2",
                             "capacity=2",
                             "family=any",
                             "k=9",
                             "limit=-1",
                             "alpha=1"};
  for (const char* const text : bad) {
    std::string line = text;
    if (!line.empty() && line.find(' ') == std::string::npos) {
      line = with_word(text);
    }
    const Result<VerifyCase> c = parse_verify_case(line);
    ASSERT_FALSE(c.has_value()) << line;
    EXPECT_EQ(c.status().code(), StatusCode::kInvalidArgument) << line;
    EXPECT_FALSE(c.status().message().empty()) << line;
  }
}

TEST(VerifyQuirks, EveryNameRoundTrips) {
  const auto names = verify::quirk_names();
  EXPECT_GE(names.size(), 25U);
  for (const std::string_view name : names) {
    const Result<verify::Quirks> quirks = verify::quirks_from_name(name);
    ASSERT_TRUE(quirks.has_value()) << name;
    EXPECT_EQ(verify::quirks_name(*quirks), name);
    EXPECT_NE(*quirks, verify::Quirks{}) << name;
  }
  EXPECT_EQ(verify::quirks_name({}), "none");
  const Result<verify::Quirks> several = verify::quirks_from_name("strided+int64_ids+zero_x");
  ASSERT_TRUE(several.has_value());
  EXPECT_EQ(verify::quirks_name(*several), "int64_ids+zero_x+strided");
}

}  // namespace
}  // namespace moekit
