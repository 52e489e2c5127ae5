// SPDX-License-Identifier: Apache-2.0
#include "runtime/verify_buffers.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "runtime/verify_tensors.h"
#include "runtime/verify_weights.h"

namespace moekit::verify {
namespace {

TEST(GuardedBuffer, SeesOneByteBeforeAndOneBehind) {
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1000}}) {
    GuardedBuffer buffer(size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.as<std::byte>()) % 256, 0U);
    EXPECT_TRUE(buffer.intact());
    for (const std::byte b : buffer.bytes()) {
      EXPECT_EQ(b, std::byte{0});
    }
    for (const std::int64_t at : {std::int64_t{-1}, size, std::int64_t{-1000}, size + 1000}) {
      std::byte& guard = buffer.as<std::byte>()[at];
      const std::byte kept = guard;
      guard = std::byte{0x5A};
      EXPECT_FALSE(buffer.intact()) << at;
      guard = kept;
    }
    EXPECT_TRUE(buffer.intact());
  }
}

TEST(HashBytes, SeesEveryBit) {
  std::vector<std::byte> bytes(77);
  std::vector<std::uint64_t> seen{hash_bytes(bytes, 0)};
  for (std::byte& b : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      b ^= std::byte{1} << bit;
      seen.push_back(hash_bytes(bytes, 0));
      b ^= std::byte{1} << bit;
    }
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end());
  EXPECT_EQ(seen.size(), 617U);
}

TEST(Random, MomentsOfTheNormal) {
  Random random(1);
  double sum = 0.0;
  double squares = 0.0;
  for (int i = 0; i < 100000; ++i) {
    const auto value = static_cast<double>(random.normal());
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / 100000, 0.0, 0.02);
  EXPECT_NEAR(squares / 100000, 1.0, 0.02);
}

VerifyCase case_of(std::string_view line) {
  Result<VerifyCase> verify_case = parse_verify_case(line);
  EXPECT_TRUE(verify_case.has_value()) << verify_case.status().to_string();
  return std::move(verify_case).value();
}

// What each quirk promises is really in the tensors.
TEST(Generation, QuirksAreInTheTensors) {
  const VerifyCase c = case_of("recipe=w4a16_nvfp4 h=64 i=32 e=8 k=4 m=33");
  const auto ids_of = [&c](RouteQuirk routes, IdQuirk ids) {
    Quirks quirks;
    quirks.routes = routes;
    quirks.ids = ids;
    const CaseTensors tensors = make_tensors(c, quirks);
    std::vector<std::int64_t> values;
    for (std::int64_t i = 0; i < std::int64_t{33} * 4; ++i) {
      values.push_back(ids == IdQuirk::kInt32
                           ? static_cast<const std::int32_t*>(tensors.arguments.topk_ids.data)[i]
                           : static_cast<const std::int64_t*>(tensors.arguments.topk_ids.data)[i]);
    }
    return values;
  };
  const auto count = [](const std::vector<std::int64_t>& ids, auto predicate) {
    return std::count_if(ids.begin(), ids.end(), predicate);
  };
  const auto inactive = [](std::int64_t id) { return id < 0 || id >= 8; };
  EXPECT_EQ(count(ids_of(RouteQuirk::kUniform, IdQuirk::kInt32), inactive), 0);
  EXPECT_GT(count(ids_of(RouteQuirk::kInactiveIds, IdQuirk::kInt32), inactive), 20);
  EXPECT_GT(count(ids_of(RouteQuirk::kOutOfRangeIds, IdQuirk::kInt32), inactive), 20);
  EXPECT_EQ(count(ids_of(RouteQuirk::kInactiveTokens, IdQuirk::kInt32), inactive), 17 * 4);
  EXPECT_EQ(count(ids_of(RouteQuirk::kAllInactive, IdQuirk::kInt64), inactive), 33 * 4);
  const auto wide = ids_of(RouteQuirk::kUniform, IdQuirk::kInt64Wide);
  EXPECT_GT(count(wide, inactive), 20);
  for (const std::int64_t id : wide) {
    EXPECT_LT(static_cast<std::uint64_t>(static_cast<std::uint32_t>(id)), 8U);  // narrowed, legal
  }
}

TEST(Generation, SameSeedSameBytesAnotherSeedOthers) {
  VerifyCase c = case_of("recipe=w4a16_mxfp4 h=64 i=32 e=8 k=4 m=3 bias=both");
  const auto first = make_weights(c, {});
  const auto again = make_weights(c, {});
  ASSERT_TRUE(first.has_value() && again.has_value());
  EXPECT_EQ(first->hash(), again->hash());
  EXPECT_EQ(make_tensors(c, {}).input_hash(), make_tensors(c, {}).input_hash());
  const std::uint64_t x = make_tensors(c, {}).input_hash();
  c.seed = 2;
  EXPECT_NE(first->hash(), make_weights(c, {})->hash());
  EXPECT_NE(x, make_tensors(c, {}).input_hash());
}

// The fused tensors in each row order, split again, decode to the rows they came from.
TEST(Generation, FusedOrderHoldsTheSameRows) {
  int compared = 0;
  for (const char* const order : {"gate_up", "up_gate", "interleaved"}) {
    for (const char* const recipe : {"w4a16_nvfp4", "w4a16_mxfp4", "w16a16"}) {
      const VerifyCase c = case_of(std::string("recipe=") + recipe +
                                   " h=40 i=24 e=3 k=1 m=1 bias=both row_order=" + order);
      const auto weights = make_weights(c, {});
      ASSERT_TRUE(weights.has_value()) << weights.status().to_string();
      for (std::size_t e = 0; e < 3; ++e) {
        const ExpertWeights& a = weights->source.experts[e];
        const ExpertWeights& b = weights->prepared.experts[e];
        ASSERT_NE(a.up.codes, b.up.codes);
        const std::pair<const WeightMatrix*, const WeightMatrix*> pairs[] = {
            {&a.gate, &b.gate}, {&a.up, &b.up}, {&a.down, &b.down}};
        for (const auto& [left, right] : pairs) {
          ASSERT_EQ(left->global_scale, right->global_scale);
          std::vector<float> x(static_cast<std::size_t>(left->cols));
          std::vector<float> y(x.size());
          for (std::int64_t r = 0; r < left->rows; ++r) {
            ASSERT_TRUE(decode_row(*left, r, x).ok());
            ASSERT_TRUE(decode_row(*right, r, y).ok());
            ASSERT_EQ(x, y) << order << " " << recipe << " row " << r;
            ++compared;
          }
        }
      }
    }
  }
  EXPECT_EQ(compared, 9 * 3 * (24 + 24 + 40));
}

}  // namespace
}  // namespace moekit::verify
