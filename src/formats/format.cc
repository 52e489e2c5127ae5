// SPDX-License-Identifier: Apache-2.0
#include "moekit/format.h"

#include "base/text.h"
#include "formats/scales.h"

namespace moekit {
namespace {

constexpr bool rows_follow_the_enum() {
  for (std::size_t i = 0; i < kFormats.size(); ++i) {
    if (static_cast<std::size_t>(kFormats[i].format) != i) {
      return false;
    }
  }
  return true;
}

static_assert(rows_follow_the_enum(), "format_info indexes kFormats by enumerator");

}  // namespace

const FormatInfo& format_info(Format format) noexcept {
  const auto index = static_cast<std::size_t>(format);
  return kFormats[index < kFormats.size() ? index : 0];
}

std::optional<Format> format_from_name(std::string_view name) noexcept {
  for (const FormatInfo& info : kFormats) {
    if (info.name == name) {
      return info.format;
    }
  }
  return std::nullopt;
}

std::int64_t scale_group_size(const WeightMatrix& matrix) noexcept {
  const std::int64_t own = format_info(matrix.format).group_size;
  return own != 0 && matrix.group_size != 0 ? matrix.group_size : own;
}

std::int64_t num_scale_cols(const WeightMatrix& matrix) noexcept {
  const std::int64_t group = scale_group_size(matrix);
  return group == 0 ? 0 : (matrix.group_offset + matrix.cols + group - 1) / group;
}

std::int64_t num_scale_rows(const WeightMatrix& matrix) noexcept {
  const FormatInfo& info = format_info(matrix.format);
  return info.scale.has_value()
             ? (matrix.group_row_offset + matrix.rows + info.group_rows - 1) / info.group_rows
             : 0;
}

std::int64_t scale_elem_bytes(const WeightMatrix& matrix) noexcept {
  const FormatInfo& info = format_info(matrix.format);
  return info.scale.has_value() ? dtype_bits(matrix.scale_dtype.value_or(*info.scale)) / 8 : 0;
}

std::int64_t code_row_bytes(Format format, std::int64_t cols) noexcept {
  // Halving first keeps the product in range; cols is a multiple of 8 wherever bits is 4.
  const std::int64_t bits = dtype_bits(format_info(format).element);
  return bits >= 8 ? cols * (bits / 8) : (cols * bits + 7) / 8;
}

namespace formats {

Status check_group_size(const FormatInfo& info, std::int64_t group_size) {
  if (takes_group_size(info, group_size)) {
    return {};
  }
  return invalid_argument(base::cat("group_size ",
                                    group_size,
                                    ", expected ",
                                    info.element == DType::kI4 ? "32, 64 or " : "",
                                    info.group_size,
                                    " (format ",
                                    info.name,
                                    ")"));
}

}  // namespace formats
}  // namespace moekit
