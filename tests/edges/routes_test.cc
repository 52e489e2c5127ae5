// SPDX-License-Identifier: Apache-2.0

// Routes that are no routes, that repeat, that are wide, and tokens without any. Every test runs
// every recipe and both execution families: M = 3 is served directly, 40 grouped, and each is
// pinned too.

#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "tests/edges/layer_under_test.h"

namespace moekit::tests {
namespace {

constexpr std::int64_t kHidden = 72;

std::string line_of(std::string_view recipe, const char* rest) {
  return "h=72 i=40 e=6 io=f32 seed=5 recipe=" + std::string(recipe) + " " + rest;
}

// Calls body(layer) for direct and grouped plans of M tokens in every recipe.
template <typename Body>
void for_each_family(std::int64_t tokens, const char* rest, const Body& body) {
  std::size_t layers = 0;
  for (const RecipeInfo& info : kRecipes) {
    for (const char* const family : {"direct", "grouped"}) {
      const std::string line = line_of(info.name, rest) + " k=2 m=" + std::to_string(tokens) +
                               " family=" + std::string(family);
      SCOPED_TRACE(line);
      LayerUnderTest layer = LayerUnderTest::make(line);
      body(layer);
      ++layers;
    }
  }
  EXPECT_EQ(layers, 2 * kRecipes.size());
}

TEST(Routes, InactiveSlotContributesExactlyNothing) {
  for (const std::int64_t tokens : {std::int64_t{3}, std::int64_t{40}}) {
    for_each_family(tokens, "bias=both", [tokens](LayerUnderTest& layer) {
      std::vector<std::int32_t> with_gap;
      std::vector<std::int32_t> twice;
      std::vector<float> weights;
      std::vector<float> zeroed;
      for (std::int64_t t = 0; t < tokens; ++t) {
        const auto expert = static_cast<std::int32_t>(t % 6);
        const std::int32_t bad[] = {-1, 6, std::numeric_limits<std::int32_t>::min()};
        with_gap.insert(with_gap.end(), {expert, bad[t % 3]});
        twice.insert(twice.end(), {expert, static_cast<std::int32_t>((t + 1) % 6)});
        weights.insert(weights.end(), {0.75F, 123.0F});
        zeroed.insert(zeroed.end(), {0.75F, 0.0F});
      }
      layer.set_ids(with_gap, weights);
      const std::vector<float> gap = layer.run_verified();
      layer.set_ids(twice, zeroed);  // a route of weight 0 changes nothing either
      const std::vector<float> zero = layer.run_verified();
      EXPECT_EQ(gap, zero);
    });
  }
}

TEST(Routes, InactiveExpertsWeightsAreNotRead) {
  for_each_family(3, "", [](LayerUnderTest& layer) {
    if (recipe_info(layer.problem().recipe).weights == Format::kBf16) {
      return;  // no globals to spoil
    }
    layer.set_ids({0, -1, 2, -1, 0, 2});
    const std::vector<float> expected = layer.run();
    // Repack with every byte of the other experts' globals made NaN: reading one would show.
    const auto bytes = layer.packed.bytes();
    std::vector<std::byte> before(bytes.begin(), bytes.end());
    for (const std::size_t expert : {1U, 3U, 4U, 5U}) {
      layer.weights.prepared.experts[expert].up.global_scale = 3e38F;
      layer.weights.prepared.experts[expert].down.global_scale = 3e38F;
    }
    layer.prepare();
    EXPECT_NE(before,
              std::vector<std::byte>(layer.packed.bytes().begin(), layer.packed.bytes().end()));
    EXPECT_TRUE(same_bits(expected, layer.run()));
  });
}

TEST(Routes, Int64IdsAreComparedBeforeNarrowing) {
  for (const std::int64_t tokens : {std::int64_t{3}, std::int64_t{40}}) {
    for_each_family(tokens, "", [tokens](LayerUnderTest& layer) {
      std::vector<std::int64_t> wide;
      std::vector<std::int32_t> narrow;
      const std::int64_t two32 = std::int64_t{1} << 32;
      for (std::int64_t t = 0; t < tokens; ++t) {
        const std::int64_t bad[] = {two32 + t % 6,
                                    -two32 + t % 6,
                                    std::numeric_limits<std::int64_t>::max(),
                                    std::numeric_limits<std::int64_t>::min()};
        wide.insert(wide.end(), {t % 6, bad[t % 4]});
        narrow.insert(narrow.end(), {static_cast<std::int32_t>(t % 6), -1});
      }
      layer.set_ids(narrow);
      const std::vector<float> expected = layer.run_verified();
      layer.tensors.arguments.topk_ids =
          matrix_view(static_cast<const void*>(wide.data()), DType::kI64, tokens, 2);
      EXPECT_TRUE(same_bits(expected, layer.run_verified()));
    });
  }
}

TEST(Routes, SameExpertTwiceInOneTokenCountsTwice) {
  for (const std::int64_t tokens : {std::int64_t{1}, std::int64_t{40}}) {
    for_each_family(tokens, "bias=both", [tokens](LayerUnderTest& layer) {
      const auto size = static_cast<std::size_t>(tokens * 2);
      layer.set_ids(std::vector<std::int32_t>(size, 4), std::vector<float>(size, 0.5F));
      const std::vector<float> twice = layer.run_verified();
      std::vector<std::int32_t> once(size, 4);
      std::vector<float> weights(size, 1.0F);
      for (std::size_t i = 1; i < size; i += 2) {
        once[i] = -1;
      }
      layer.set_ids(once, weights);
      EXPECT_EQ(twice, layer.run_verified());  // 0.5 r + 0.5 r is exactly r
    });
  }
}

TEST(Routes, TokenWithoutActiveRoutesIsExactlyZero) {
  for (const std::int64_t tokens : {std::int64_t{3}, std::int64_t{40}}) {
    for_each_family(tokens, "bias=both", [tokens](LayerUnderTest& layer) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens * 2), 1);
      ids[2] = -1;
      ids[3] = 77;
      layer.set_ids(ids);
      // Whatever x holds.
      const float nan = std::nanf("");
      std::memcpy(layer.tensors.inputs.front().as<float>() + kHidden + 5, &nan, sizeof nan);
      const std::vector<float> out = layer.run_verified();
      for (const float value : row_of(out, 1, kHidden)) {
        EXPECT_EQ(value, 0.0F);
        EXPECT_FALSE(std::signbit(value));
      }
      EXPECT_NE(row_of(out, 0, kHidden)[0], 0.0F);
    });
  }
}

TEST(Routes, AllTokensInactive) {
  for_each_family(40, "bias=both", [](LayerUnderTest& layer) {
    layer.set_ids(std::vector<std::int32_t>(80, -1));
    const std::vector<float> out = layer.run_verified();
    EXPECT_EQ(out, std::vector<float>(40 * kHidden, 0.0F));
  });
}

TEST(Routes, InactiveTokenKeepsItsSharedRow) {
  for_each_family(3, "shared=f32", [](LayerUnderTest& layer) {
    layer.set_ids({1, 2, -1, -1, 3, 4});
    const std::vector<float> out = layer.run_verified();
    const auto* shared = static_cast<const float*>(layer.tensors.arguments.shared.data);
    for (std::size_t n = 0; n < kHidden; ++n) {
      EXPECT_EQ(out[kHidden + n], shared[kHidden + n]);
    }
  });
}

TEST(Routes, NonFiniteTokenIsNanThroughoutAndChangesNoOtherRow) {
  for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
    for (const std::int64_t tokens : {std::int64_t{3}, std::int64_t{40}}) {
      for_each_family(tokens, "activation=swiglu_oai", [&](LayerUnderTest& layer) {
        const std::vector<float> expected = layer.run_verified();
        std::memcpy(layer.tensors.inputs.front().as<float>() + kHidden + 5, &bad, sizeof bad);
        const std::vector<float> out = layer.run_verified();
        for (std::int64_t t = 0; t < tokens; ++t) {
          if (t != 1) {
            EXPECT_TRUE(same_bits(row_of(out, t, kHidden), row_of(expected, t, kHidden))) << t;
            continue;
          }
          for (const float value : row_of(out, 1, kHidden)) {
            EXPECT_TRUE(std::isnan(value));
          }
        }
      });
    }
  }
}

TEST(Routes, MappedIdsReachTheirLocalsOrNothing) {
  for_each_family(3, "map=1 router_experts=9", [](LayerUnderTest& layer) {
    std::vector<std::int32_t> map = {-1, 3, -1, 0, 5, 1, -1, 4, 2};
    layer.tensors.arguments.expert_map = map.data();
    layer.set_ids({1, 8, 0, 3, 2, 6});
    const std::vector<float> mapped = layer.run_verified();
    LayerUnderTest plain =
        LayerUnderTest::make(line_of(recipe_info(layer.problem().recipe).name, "k=2 m=3"));
    plain.verify_case.overrides = layer.verify_case.overrides;
    plain.weights = layer.weights;
    plain.tensors.arguments.topk_weights = layer.tensors.arguments.topk_weights;
    plain.tensors.arguments.x = layer.tensors.arguments.x;
    plain.set_ids({3, 2, -1, 0, -1, -1});
    EXPECT_TRUE(same_bits(mapped, plain.run_verified()));
  });
}

TEST(Routes, NoTokensTouchNothing) {
  for_each_family(0, "bias=both shared=io", [](LayerUnderTest& layer) {
    EXPECT_TRUE(layer.run().empty());
    for (const std::byte b : layer.workspace.bytes()) {
      ASSERT_EQ(b, std::byte{0xFF});
    }
    const VerifyReport report = layer.verify();
    EXPECT_TRUE(report.passed);
    EXPECT_EQ(report.outputs_checked, 0);
  });
  for (const RecipeInfo& info : kRecipes) {
    LayerUnderTest layer = LayerUnderTest::make(line_of(info.name, "k=2 m=0 capacity=9"));
    EXPECT_TRUE(layer.run().empty()) << info.name;
  }
}

}  // namespace
}  // namespace moekit::tests
