// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors.h"

#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/composed_files_test.h"
#include "checkpoint/state.h"

namespace moekit::checkpoint {
namespace {

struct Hostile {
  std::string header;
  std::size_t num_bytes;
  std::string words;  // of the message
};

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

const std::vector<Hostile> kHostile{
    {"[]", 0, "does not begin with '{'"},
    {" {}", 0, "does not begin with '{'"},
    {"", 0, "does not begin with '{'"},
    {"{", 0, "syntax error"},
    {"{\"t\xFF\":1}", 0, "syntax error"},
    {R"({"t":1})", 0, "not an object"},
    {R"({"__metadata__":[]})", 0, "__metadata__ is not an object"},
    {R"({"__metadata__":{"a":1}})", 0, "'a' is not a string"},
    {one(R"("F32")", "[1]", "[0,4]") + "x", 4, "syntax error"},
    {one("7", "[1]", "[0,4]"), 4, "dtype is missing or not a string"},
    {one(R"("F33")", "[1]", "[0,4]"), 4, "dtype 'F33' is unknown"},
    {one(R"("F32")", "1", "[0,4]"), 4, "shape is missing or not an array"},
    {one(R"("F32")", "[-1]", "[0,4]"), 4, "shape[0] is not an integer"},
    {one(R"("F32")", "[1.0]", "[0,4]"), 4, "shape[0] is not an integer"},
    {one(R"("F32")", R"(["1"])", "[0,4]"), 4, "shape[0] is not an integer"},
    {one(R"("F32")", "[9223372036854775808]", "[0,4]"), 4, "shape[0] is not an integer"},
    {one(R"("F32")", "[99999999999999999999999]", "[0,4]"), 4, "shape[0] is not an integer"},
    {one(R"("F32")", "[4294967296,4294967296]", "[0,0]"), 0, "more than 2^63 bits"},
    {one(R"("F32")", "[4611686018427387904]", "[0,0]"), 0, "more than 2^63 bits"},
    {one(R"("F32")", "[0,4294967296,4294967296]", "[0,0]"), 0, "more than 2^63 bits"},
    {one(R"("BF16")", "[0,576460752303423496,8]", "[0,0]"), 0, "more than 2^63 bits"},
    {one(R"("F4")", "[3]", "[0,2]"), 2, "no whole byte count"},
    {one(R"("F32")", "[1]", "[0]"), 4, "data_offsets is missing or not two"},
    {one(R"("F32")", "[1]", "[0,4,8]"), 4, "data_offsets is missing or not two"},
    {one(R"("F32")", "[1]", "[-4,0]"), 4, "data_offsets is missing or not two"},
    {one(R"("F32")", "[1]", "[4,0]"), 4, "do not lie in the 4 bytes"},
    {one(R"("F32")", "[1]", "[0,8]"), 4, "do not lie in the 4 bytes"},
    {one(R"("F32")", "[1]", "[9223372036854775808,9223372036854775812]"),
     4,
     "[9223372036854775808, 9223372036854775812] do not lie in the 4 bytes"},
    {one(R"("F32")", "[1]", "[18446744073709551612,18446744073709551615]"), 4, "do not lie in"},
    {one(R"("F32")", "[2]", "[0,4]"), 4, "hold 4 bytes, shape [2] of F32 needs 8"},
    {one(R"("F32")", "[1]", "[0,4]"), 5, "cover 4 bytes of data, the file holds 5"},
    {one(R"("F32")", "[1]", "[1,5]"), 5, "after a hole behind the header"},
    {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
     R"("b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})",
     7,
     "tensor 'b' begins at byte 3, overlapping 'a' which ends at 4"},
    {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
     R"("b":{"dtype":"U8","shape":[2],"data_offsets":[5,7]}})",
     7,
     "tensor 'b' begins at byte 5, after a hole behind 'a'"},
    {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
     R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
     2,
     "duplicate key 'a'"},
};

TEST(Safetensors, hostile_headers_are_refused_with_values) {
  for (const Hostile& hostile : kHostile) {
    const std::string file = compose_file(hostile.header, hostile.num_bytes);
    const Result<SafetensorsContent> parsed = parse_safetensors(as_bytes(file));
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << hostile.header;
    EXPECT_NE(parsed.status().message().find(hostile.words), std::string_view::npos)
        << hostile.header << "\n  " << parsed.status().message();
  }
  EXPECT_GE(kHostile.size(), 30U);
}

TEST(Safetensors, header_lengths) {
  for (const std::uint64_t length : {std::uint64_t{3},
                                     std::uint64_t{1} << 31,
                                     std::uint64_t{1} << 63,
                                     ~std::uint64_t{0},
                                     ~std::uint64_t{0} - 7}) {
    std::string file = compose_file("{}", 0);
    std::memcpy(file.data(), &length, sizeof length);
    const Result<SafetensorsContent> parsed = parse_safetensors(as_bytes(file));
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << length;
    EXPECT_NE(parsed.status().message().find(std::to_string(length)), std::string_view::npos)
        << parsed.status().message();
  }
}

TEST(Safetensors, every_truncation_is_an_error) {
  const std::string file =
      compose_zeros({{"a", "F32", {3, 2}}, {"b", "BF16", {5}}, {"c", "U8", {}}});
  ASSERT_TRUE(parse_safetensors(as_bytes(file)).has_value());
  for (std::size_t size = 0; size < file.size(); ++size) {
    EXPECT_EQ(parse_safetensors(as_bytes(file).first(size)).status().code(),
              StatusCode::kInvalidArgument)
        << size;
  }
  ASSERT_GT(file.size(), 100U);
}

TEST(Safetensors, every_dtype_and_rank_is_listed) {
  std::vector<ComposedTensor> tensors;
  for (const ContainerDType& row : kContainerDTypes) {
    tensors.push_back({std::string(row.name), std::string(row.name), {2, 4}});
  }
  tensors.push_back({"scalar", "F32", {}});
  tensors.push_back({"empty", "F32", {0, 7}});
  tensors.push_back({"five", "U8", {1, 2, 1, 2, 1}});
  const std::string file = compose_zeros(tensors);
  Checkpoint::State state;
  const Status status = add_tensors({.name = "f", .bytes = as_bytes(file)}, nullptr, state);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(state.tensors.size(), kContainerDTypes.size() + 3);
  int without_view = 0;
  for (const auto& [name, tensor] : state.tensors) {
    without_view += tensor.view.data == nullptr ? 1 : 0;
  }
  EXPECT_EQ(without_view, 9 + 1);  // dtypes without a name in moekit, and rank 5
  EXPECT_EQ(state.tensors.at("scalar").view.rank, 0);
  EXPECT_EQ(state.tensors.at("F4").bytes, 4);
  EXPECT_EQ(state.tensors.at("F4").view.dtype, DType::kE2m1);
  EXPECT_EQ(state.tensors.at("BF16").view.strides[0], 4);
  EXPECT_EQ(state.tensors.at("five").view.rank, 5);
}

TEST(Safetensors, unaligned_tensors_are_copied_into_place) {
  // The header has no padding and the first tensor one byte: the floats lie at an odd offset.
  std::string file = compose_file(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                  R"("b":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})",
                                  9);
  const float values[2] = {1.5F, -2.0F};
  std::memcpy(file.data() + file.size() - 8, values, sizeof values);
  for (std::size_t shift = 0; shift < 4; ++shift) {
    std::string storage(shift, ' ');
    storage += file;
    Checkpoint::State state;
    const Status status =
        add_tensors({.name = "f", .bytes = as_bytes(storage).subspan(shift)}, nullptr, state);
    ASSERT_TRUE(status.ok()) << status.to_string();
    const void* stored = state.tensors.at("b").view.data;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(stored) % alignof(float), 0U);
    EXPECT_EQ(std::memcmp(stored, values, sizeof values), 0);
  }
}

TEST(Safetensors, unknown_fields_are_ignored_and_listed) {
  const std::string file =
      compose_file(R"({"__metadata__":{"format":"pt"},)"
                   R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"crc":5}})",
                   1);
  Checkpoint::State state;
  ASSERT_TRUE(add_tensors({.name = "f", .bytes = as_bytes(file)}, nullptr, state).ok());
  EXPECT_EQ(state.summary.ignored_fields, (std::vector<std::string>{"f 'a' 'crc'"}));
}

}  // namespace
}  // namespace moekit::checkpoint
