// SPDX-License-Identifier: Apache-2.0
// The GGUF container: well-formed files, and one file for every way a header can lie.
#include "checkpoint/gguf.h"

#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/composed_files_test.h"
#include "checkpoint/composed_gguf_test.h"
#include "checkpoint/state.h"

namespace moekit::checkpoint {
namespace {

constexpr std::uint32_t kF32 = 0;
constexpr std::uint32_t kMxfp4 = 39;
constexpr std::uint32_t kNvfp4 = 40;

std::string error_of(const std::string& file) {
  const Result<GgufContent> content = parse_gguf(as_bytes(file));
  EXPECT_FALSE(content.has_value());
  EXPECT_EQ(content.status().code(), StatusCode::kInvalidArgument);
  return std::string(content.status().message());
}

void expect_error(const std::string& file, std::string_view part) {
  const std::string message = error_of(file);
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(Gguf, reads_tensors_and_values_of_every_type) {
  GgufText values;
  values.add_text("u8").add(std::uint32_t{0}).add(std::uint8_t{200});
  values.add_text("i8").add(std::uint32_t{1}).add(std::int8_t{-3});
  values.add_text("u16").add(std::uint32_t{2}).add(std::uint16_t{60000});
  values.add_text("i16").add(std::uint32_t{3}).add(std::int16_t{-300});
  values.add_text("u32").add(std::uint32_t{4}).add(std::uint32_t{4000000000});
  values.add_text("i32").add(std::uint32_t{5}).add(std::int32_t{-5});
  values.add_text("f32").add(std::uint32_t{6}).add(0.25F);
  values.add_text("bool").add(std::uint32_t{7}).add(std::uint8_t{1});
  values.add_text("text").add(std::uint32_t{8}).add_text("a b");
  values.add_text("floats").add(std::uint32_t{9}).add(std::uint32_t{6}).add(std::uint64_t{2});
  values.add(1.5F).add(-2.0F);
  values.add_text("words").add(std::uint32_t{9}).add(std::uint32_t{8}).add(std::uint64_t{2});
  values.add_text("x").add_text("yz");
  values.add_text("u64").add(std::uint32_t{10}).add(std::uint64_t{1} << 63);
  values.add_text("i64").add(std::uint32_t{11}).add(std::int64_t{-1});
  values.add_text("f64").add(std::uint32_t{12}).add(1e300);
  const std::string file =
      compose_gguf({{"a", kF32, {3, 2}, 0}, {"b", kMxfp4, {32, 2, 1}, 32}}, 96, 14, values.text());
  const Result<GgufContent> content = parse_gguf(as_bytes(file));
  ASSERT_TRUE(content.has_value()) << content.status().to_string();
  const auto& metadata = content->metadata;
  EXPECT_EQ(metadata.size(), 14U);
  EXPECT_EQ(metadata.at("u8").integer, 200U);
  EXPECT_EQ(metadata.at("i8").number, -3.0);
  EXPECT_FALSE(metadata.at("i8").integer.has_value());
  EXPECT_EQ(metadata.at("u64").integer, std::uint64_t{1} << 63);
  EXPECT_EQ(metadata.at("f32").number, 0.25);
  EXPECT_EQ(metadata.at("bool").boolean, true);
  EXPECT_EQ(metadata.at("text").text, "a b");
  EXPECT_EQ(metadata.at("floats").numbers, (std::vector<double>{1.5, -2.0}));
  ASSERT_EQ(content->tensors.size(), 2U);
  EXPECT_EQ(content->tensors[0].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(content->tensors[0].bytes.size(), 24U);
  EXPECT_EQ(content->tensors[1].dtype->name, "MXFP4");
  EXPECT_EQ(content->tensors[1].bytes.size(), 34U);
}

TEST(Gguf, every_prefix_of_a_file_is_refused_or_has_no_tensors) {
  const std::string file = compose_gguf_layer({});
  int refused = 0;
  for (std::size_t size = 0; size < file.size(); ++size) {
    refused += parse_gguf(as_bytes(std::string_view(file).substr(0, size))).has_value() ? 0 : 1;
  }
  EXPECT_EQ(refused, static_cast<int>(file.size()));
}

TEST(Gguf, refuses_other_versions_and_byte_orders) {
  std::string file = compose_gguf({}, 0);
  file[4] = 1;
  expect_error(file, "version 1");
  file[4] = 0;
  file[7] = 3;
  expect_error(file, "big-endian");
  expect_error("GGML", "does not begin with GGUF");
}

TEST(Gguf, refuses_counts_that_the_file_does_not_hold) {
  std::string file = compose_gguf({}, 0);
  for (std::size_t i = 16; i < 24; ++i) {
    file[i] = '\xFF';  // number of values
  }
  expect_error(file, "empty or not UTF-8");  // the padding, read as a key
  expect_error(file.substr(0, 24), "more needed");
  const std::string values =
      GgufText().add_text("a").add(std::uint32_t{9}).add(std::uint32_t{4}).text() +
      GgufText().add(std::numeric_limits<std::uint64_t>::max()).text();
  expect_error(compose_gguf({}, 64, 1, values), "array of 18446744073709551615 elements");
  expect_error(
      compose_gguf({}, 64, 1, GgufText().add(std::uint64_t{1} << 63).add(std::uint64_t{0}).text()),
      "text of 9223372036854775808 bytes");
}

TEST(Gguf, refuses_deeply_nested_arrays) {
  GgufText values;
  values.add_text("a").add(std::uint32_t{9});
  for (int depth = 0; depth < 2000; ++depth) {
    values.add(std::uint32_t{9}).add(std::uint64_t{1});
  }
  expect_error(compose_gguf({}, 64, 1, values.text()), "nest deeper");
}

TEST(Gguf, refuses_duplicate_empty_and_ill_formed_names) {
  const std::string twice = gguf_u32_value("a", 1) + gguf_u32_value("a", 2);
  expect_error(compose_gguf({}, 0, 2, twice), "stands twice");
  expect_error(compose_gguf({{"t", kF32, {8}, 0}, {"t", kF32, {8}, 32}}, 64), "stands twice");
  expect_error(compose_gguf({{"", kF32, {8}, 0}}, 64), "empty or not UTF-8");
  for (const std::string bad :
       {"\xFF", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82"}) {
    expect_error(compose_gguf({{bad, kF32, {8}, 0}}, 64), "not UTF-8");
  }
  EXPECT_TRUE(parse_gguf(as_bytes(compose_gguf({{"\xC3\xA9\xF0\x9F\x98\x80", kF32, {8}, 0}}, 64)))
                  .has_value());
}

TEST(Gguf, refuses_shapes_and_types_that_do_not_fit) {
  expect_error(compose_gguf({{"t", kF32, {1, 1, 1, 1, 1}, 0}}, 64), "5 dimensions");
  expect_error(compose_gguf({{"t", 999, {8}, 0}}, 64), "type 999 is unknown");
  expect_error(compose_gguf({{"t", kMxfp4, {33}, 0}}, 64), "no whole MXFP4 blocks of 32");
  expect_error(compose_gguf({{"t", kNvfp4, {32}, 0}}, 64), "no whole NVFP4 blocks of 64");
  expect_error(compose_gguf({{"t", kF32, {std::uint64_t{1} << 63}, 0}}, 64), "extent");
  const std::uint64_t large = std::uint64_t{1} << 31;
  expect_error(compose_gguf({{"t", kF32, {large, large, large}, 0}}, 64), "more than 2^63");
  expect_error(compose_gguf({{"t", kF32, {large, large, large, 0}, 0}}, 64), "more than 2^63");
  // Elements fit, their bytes do not.
  expect_error(compose_gguf({{"t", kF32, {8, std::uint64_t{1} << 59, 0}, 0}}, 64),
               "more than 2^63");
}

TEST(Gguf, refuses_offsets_outside_unaligned_or_overlapping) {
  expect_error(compose_gguf({{"t", kF32, {8}, 16}}, 64), "not aligned to 32");
  expect_error(compose_gguf({{"t", kF32, {8}, 64}}, 64), "does not lie in the 64 bytes");
  expect_error(compose_gguf({{"t", kF32, {8}, (std::uint64_t{1} << 63)}}, 64), "does not lie in");
  expect_error(compose_gguf({{"s", kF32, {16}, 0}, {"t", kF32, {8}, 32}}, 64), "another one ends");
  expect_error(compose_gguf({{"t", kF32, {8}, 0}}, 64, 1, gguf_u32_value("general.alignment", 24)),
               "power of two");
}

struct OpenGguf {
  explicit OpenGguf(std::string bytes) : file(std::move(bytes)) {
    status = add_gguf({.name = "f.gguf", .bytes = as_bytes(file)}, state);
    find_modules(state);
  }

  std::string file;
  Checkpoint::State state;
  Status status;
};

TEST(GgufLayer, every_block_type_has_its_format_and_shape) {
  struct Case {
    std::uint32_t type;
    bool fused;
    Recipe recipe;
  };

  for (const Case& c : {Case{39, false, Recipe::kW4a16Mxfp4},
                        Case{39, true, Recipe::kW4a16Mxfp4},
                        Case{40, false, Recipe::kW4a16Nvfp4},
                        Case{40, true, Recipe::kW4a16Nvfp4},
                        Case{30, false, Recipe::kW16a16},
                        Case{30, true, Recipe::kW16a16}}) {
    const OpenGguf open(compose_gguf_layer({.type = c.type, .hidden = 128, .fused = c.fused}));
    ASSERT_TRUE(open.status.ok()) << open.status.to_string();
    const Result<CheckpointLayer> layer = read_layer(open.state, 0);
    ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
    EXPECT_EQ(layer->problem.recipe, c.recipe);
    EXPECT_EQ(layer->problem.hidden_size, 128);
    EXPECT_EQ(layer->problem.intermediate_size, 64);
    ASSERT_EQ(layer->source.experts.size(), 2U);
    EXPECT_EQ(layer->source.experts[1].gate.rows, 64);
    EXPECT_EQ(layer->source.experts[1].down.cols, 64);
    ASSERT_TRUE(layer->routing.has_value());
    EXPECT_TRUE(layer->routing->renormalize);
  }
}

TEST(GgufLayer, a_clamp_of_the_layer_is_refused_with_its_value) {
  ComposedGgufLayer composed{.architecture = "step35", .clamps = {0.0F, 7.0F}};
  const OpenGguf without(compose_gguf_layer(composed));
  ASSERT_TRUE(without.status.ok()) << without.status.to_string();
  EXPECT_TRUE(read_layer(without.state, 0).has_value())
      << read_layer(without.state, 0).status().to_string();
  composed.clamps = {7.0F, 0.0F};
  const OpenGguf with(compose_gguf_layer(composed));
  ASSERT_TRUE(with.status.ok()) << with.status.to_string();
  const Status status = read_layer(with.state, 0).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("step35.swiglu_clamp_exp clamps layer 0 at 7"), std::string::npos)
      << status.to_string();
}

TEST(GgufLayer, clamps_of_another_type_are_refused) {
  const OpenGguf open(compose_gguf({},
                                   0,
                                   2,
                                   gguf_text_value("general.architecture", "step35") +
                                       gguf_u32_value("step35.swiglu_clamp_exp", 7)));
  EXPECT_EQ(open.status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(open.status.message().find("GGUF step35.swiglu_clamp_exp is not an array of numbers"),
            std::string::npos)
      << open.status.to_string();
}

TEST(GgufLayer, mixed_and_foreign_types_are_refused_by_name) {
  std::string file = compose_gguf_layer({.type = 12, .hidden = 256, .intermediate = 256});
  const OpenGguf q4(file);
  ASSERT_TRUE(q4.status.ok()) << q4.status.to_string();
  const Status foreign = read_layer(q4.state, 0).status();
  EXPECT_EQ(foreign.code(), StatusCode::kUnsupported);
  EXPECT_NE(foreign.message().find("Q4_K"), std::string::npos) << foreign.to_string();
  const OpenGguf mixed(compose_gguf({{"blk.0.ffn_up_exps.weight", 39, {64, 64, 1}, 0},
                                     {"blk.0.ffn_gate_exps.weight", 39, {64, 64, 1}, 4352 / 2},
                                     {"blk.0.ffn_down_exps.weight", 30, {64, 64, 1}, 4352}},
                                    4352 + 8192));
  ASSERT_TRUE(mixed.status.ok()) << mixed.status.to_string();
  const Status status = read_layer(mixed.state, 0).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("mixed formats"), std::string::npos) << status.to_string();
}

TEST(GgufLayer, a_scale_byte_that_ggml_reads_as_zero_is_zero) {
  std::string file = compose_gguf_layer({.type = 40});
  const Result<GgufContent> content = parse_gguf(as_bytes(file));
  ASSERT_TRUE(content.has_value());
  for (const TensorEntry& entry : content->tensors) {
    if (entry.name.find("up_exps") != std::string::npos) {
      file[static_cast<std::size_t>(reinterpret_cast<const char*>(entry.bytes.data()) -
                                    file.data())] = 0x7F;
    }
  }
  const OpenGguf open(file);
  const Result<CheckpointLayer> layer = read_layer(open.state, 0);
  ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
  EXPECT_TRUE(validate_weights(layer->source.experts[0].up).ok());
}

}  // namespace
}  // namespace moekit::checkpoint
