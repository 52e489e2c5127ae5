// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstring>
#include <limits>
#include <string>
#include <sys/resource.h>
#include <sys/stat.h>
#include <vector>

#include <gtest/gtest.h>

#include "moekit/checkpoint.h"

#include "checkpoint/composed_files_test.h"
#include "checkpoint/temporary_folder_test.h"

namespace moekit::checkpoint {
namespace {

using WriteSafetensors = TemporaryFolder;

TensorView contiguous(const void* start, DType dtype, std::vector<std::int64_t> shape) {
  TensorView view{.data = start, .dtype = dtype, .rank = static_cast<int>(shape.size())};
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    view.shape[axis] = shape[axis];
    view.strides[axis] = stride;
    stride *= shape[axis];
  }
  return view;
}

TEST_F(WriteSafetensors, what_is_written_reads_back) {
  const std::vector<float> floats{1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F};
  const std::vector<std::uint8_t> bytes{9, 8, 7};
  const std::int64_t integer = -5;
  const Status status =
      write_safetensors(path("a.safetensors"),
                        {{"bytes", contiguous(bytes.data(), DType::kU8, {3})},
                         {"floats \"\u00e9", contiguous(floats.data(), DType::kF32, {2, 3})},
                         {"integer", contiguous(&integer, DType::kI64, {})},
                         {"nothing", contiguous(nullptr, DType::kF32, {0, 4})}},
                        {{"format", "pt"}});
  ASSERT_TRUE(status.ok()) << status.to_string();
  const Result<Checkpoint> opened = Checkpoint::open(path("a.safetensors"));
  ASSERT_TRUE(opened.has_value()) << opened.status().to_string();
  EXPECT_EQ(opened->summary().num_tensors, 4);
  EXPECT_EQ(opened->summary().total_bytes, 24 + 3 + 8);
  const NamedTensor* read = opened->find("floats \"\u00e9");
  ASSERT_NE(read, nullptr);
  EXPECT_EQ(read->view.shape[1], 3);
  EXPECT_EQ(std::memcmp(read->view.data, floats.data(), 24), 0);
  EXPECT_EQ(std::memcmp(opened->find("bytes")->view.data, bytes.data(), 3), 0);
  EXPECT_EQ(std::memcmp(opened->find("integer")->view.data, &integer, 8), 0);
  EXPECT_EQ(opened->find("nothing")->view.shape[0], 0);
  EXPECT_EQ(count_entries(), 1);
}

TEST_F(WriteSafetensors, wrong_tensors_are_refused_and_leave_no_file) {
  const std::vector<float> floats(16);
  const TensorView good = contiguous(floats.data(), DType::kF32, {2, 4});
  TensorView strided = good;
  strided.strides[0] = 8;
  TensorView negative = good;
  negative.shape[0] = -1;
  TensorView overflowing = contiguous(floats.data(), DType::kF32, {1, 1});
  overflowing.shape = {std::int64_t{1} << 62, 4, 0, 0};
  overflowing.strides = {4, 1, 0, 0};
  TensorView null = good;
  null.data = nullptr;
  TensorView deep = good;
  deep.rank = 5;
  const std::vector<std::vector<TensorToWrite>> cases{
      {{"a", good}, {"a", good}},
      {{"a", strided}},
      {{"a", negative}},
      {{"a", overflowing}},
      {{"a", null}},
      {{"a", deep}},
      {{"\xFF", good}},
      {{"__metadata__", good}},
      {{"a", contiguous(floats.data(), DType::kI4, {2})}},
      {{"a", contiguous(floats.data(), DType::kE2m1, {3})}},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(write_safetensors(path("a"), cases[i]).code(), StatusCode::kInvalidArgument) << i;
  }
  EXPECT_EQ(count_entries(), 0);
}

TEST_F(WriteSafetensors, a_full_or_missing_folder_is_an_io_error_without_a_partial_file) {
  const std::vector<float> floats(10000);
  const std::vector<TensorToWrite> tensors{{"a", contiguous(floats.data(), DType::kF32, {10000})}};
  EXPECT_EQ(write_safetensors(path("none/a"), tensors).code(), StatusCode::kIo);
  EXPECT_EQ(write_safetensors(folder_, tensors).code(), StatusCode::kIo);
  // A file size limit answers write() like a full disk does, once its signal is ignored.
  const auto previous = std::signal(SIGXFSZ, SIG_IGN);

  struct rlimit before {};

  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);

  const struct rlimit small { 8192, before.rlim_max };

  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = write_safetensors(path("a"), tensors);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, previous);
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(count_entries(), 0);
}

TEST_F(WriteSafetensors, an_old_file_survives_a_refused_write) {
  write("a", "old");
  const std::vector<float> floats(4);
  TensorView strided = contiguous(floats.data(), DType::kF32, {2, 2});
  strided.strides[0] = 3;
  EXPECT_FALSE(write_safetensors(path("a"), {{"a", strided}}).ok());
  std::string content;
  std::ifstream(path("a")) >> content;
  EXPECT_EQ(content, "old");
}

TEST_F(WriteSafetensors, tensors_above_4_gib_are_read_at_their_offsets) {
  // A sparse file: 2^31 + 8 BF16 elements, then one byte tensor behind them.
  constexpr std::int64_t kElems = (std::int64_t{1} << 31) + 8;
  const std::string header = R"({"big":{"dtype":"BF16","shape":[)" + std::to_string(kElems / 8) +
                             R"(,8],"data_offsets":[0,)" + std::to_string(2 * kElems) +
                             R"(]},"tail":{"dtype":"U8","shape":[1],"data_offsets":[)" +
                             std::to_string(2 * kElems) + "," + std::to_string(2 * kElems + 1) +
                             "]}}";
  std::string start = header;
  start.append((8 - start.size() % 8) % 8, ' ');
  start = compose_file(start, 0);
  {
    std::ofstream file(path("big"), std::ios::binary);
    file << start;
    file.seekp(static_cast<std::streamoff>(start.size()) + 2 * kElems - 1);
    file.put('\x3F');  // the upper byte of the last BF16 element: 0x3F00 is 0.5
    file.put('t');
  }
  const Result<Checkpoint> opened = Checkpoint::open(path("big"));
  ASSERT_TRUE(opened.has_value()) << opened.status().to_string();
  const NamedTensor* tail = opened->find("tail");
  ASSERT_NE(tail, nullptr);
  EXPECT_EQ(*static_cast<const char*>(tail->view.data), 't');
  const NamedTensor* big = opened->find("big");
  const WeightMatrix matrix{
      .rows = kElems / 8, .cols = 8, .codes = big->view.data, .row_stride_bytes = 16};
  ASSERT_TRUE(validate_weights(matrix).ok());
  std::vector<float> row(8);
  ASSERT_TRUE(decode_row(matrix, matrix.rows - 1, row).ok());
  EXPECT_EQ(row[7], 0.5F);
  EXPECT_EQ(row[6], 0.0F);
}

}  // namespace
}  // namespace moekit::checkpoint
