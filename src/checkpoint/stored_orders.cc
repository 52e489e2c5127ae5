// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/stored_orders.h"

#include <array>
#include <bit>
#include <cstring>

#include "base/text.h"
#include "checkpoint/json_text.h"
#include "checkpoint/negative_scales.h"

namespace moekit::checkpoint {
namespace {

using base::cat;

constexpr std::int64_t kWordCodes = 8;  // 4-bit codes of an i32

/// Column of nibble i within eight columns of an AWQ word.
constexpr std::array<std::int64_t, 8> kAwqColumns{0, 2, 4, 6, 1, 3, 5, 7};

std::uint32_t word_at(const TensorView& view, std::int64_t row, std::int64_t col) {
  return static_cast<const std::uint32_t*>(view.data)[row * view.shape[1] + col];
}

std::uint32_t nibble(std::uint32_t word, std::int64_t at) {
  return (word >> (4 * at)) & 15U;
}

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBf16;
}

Result<const NamedTensor*> require_matrix(const LinearSource& source, std::string_view suffix) {
  const std::string name = cat(source.base, suffix);
  MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* tensor, source.tensors->require(name));
  if (tensor->view.rank != 2) {
    return invalid_argument(cat("tensor ",
                                printable(name),
                                " has shape ",
                                shape_text(tensor->view),
                                ", expected a matrix"));
  }
  return tensor;
}

Result<const NamedTensor*> require_floats(const LinearSource& source, std::string_view suffix) {
  MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* tensor, require_matrix(source, suffix));
  if (!is_float(tensor->view.dtype)) {
    return unsupported(cat("tensor ",
                           printable(tensor->name),
                           " has dtype ",
                           dtype_name(tensor->view.dtype),
                           ", nearest supported: f32, f16, bf16"));
  }
  return tensor;
}

/// E8M0 bytes from f32 that are powers of two.
Result<const void*> bytes_of_powers(const NamedTensor& scales, LayerStorage& storage) {
  const std::int64_t count = scales.bytes / 4;
  std::byte* bytes = storage.take(count);
  const auto* values = static_cast<const float*>(scales.view.data);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(values[i]);
    // 2^-127 is byte 0 and a subnormal f32; every other power is its own exponent field.
    const bool least = bits == 0x0040'0000U;
    if (!least && ((bits & 0x807F'FFFFU) != 0 || bits == 0 || bits >= 0x7F80'0000U)) {
      return invalid_argument(cat("tensor ",
                                  printable(scales.name),
                                  " holds ",
                                  values[i],
                                  " at ",
                                  i,
                                  ", expected powers of two from 2^-127 to 2^127 as scales"));
    }
    bytes[i] = least ? std::byte{0} : static_cast<std::byte>(bits >> 23);
  }
  return static_cast<const void*>(bytes);
}

/// Group length along K of `count` groups, the configured one where it fits.
Result<std::int64_t> int4_group(const LinearSource& source, std::int64_t cols, std::int64_t count) {
  for (const std::int64_t group : {std::int64_t{128}, std::int64_t{64}, std::int64_t{32}}) {
    if ((cols + group - 1) / group == count) {
      return group;
    }
  }
  return unsupported(cat(printable(source.base),
                         " has ",
                         count,
                         " scale groups along K = ",
                         cols,
                         ", nearest supported: groups of 32, 64 or 128"));
}

/// [groups, N] as [N, groups].
template <typename T>
const void* transposed(const TensorView& view, LayerStorage& storage) {
  const std::int64_t groups = view.shape[0];
  const std::int64_t rows = view.shape[1];
  auto* out = reinterpret_cast<T*>(storage.take(groups * rows * std::int64_t{sizeof(T)}));
  const auto* in = static_cast<const T*>(view.data);
  for (std::int64_t group = 0; group < groups; ++group) {
    for (std::int64_t row = 0; row < rows; ++row) {
      out[row * groups + group] = in[group * rows + row];
    }
  }
  return out;
}

/// Scales [groups, N] of AWQ and GPTQ, transposed into `matrix`.
Status adopt_scales(const LinearSource& source, const NamedTensor& scales, WeightMatrix& matrix) {
  const TensorView& view = scales.view;
  if (view.shape[1] != matrix.rows) {
    return invalid_argument(cat("tensor ",
                                printable(scales.name),
                                " has shape ",
                                shape_text(view),
                                ", expected ",
                                matrix.rows,
                                " columns"));
  }
  MOEKIT_ASSIGN_OR_RETURN(matrix.group_size, int4_group(source, matrix.cols, view.shape[0]));
  const bool wide = view.dtype == DType::kF32;
  matrix.scales = wide ? transposed<float>(view, *source.storage)
                       : transposed<std::uint16_t>(view, *source.storage);
  matrix.scale_dtype = view.dtype;
  matrix.scale_row_stride_bytes = view.shape[0] * (wide ? 4 : 2);
  return {};
}

/// Zero points i32 [groups, N / 8]; `column(i)` is the column of nibble i, `offset` is added.
template <typename Column>
Status adopt_zeros(const LinearSource& source,
                   Column&& column,
                   std::uint32_t offset,
                   WeightMatrix& matrix) {
  const std::int64_t groups = (matrix.cols + matrix.group_size - 1) / matrix.group_size;
  MOEKIT_ASSIGN_OR_RETURN(
      const NamedTensor* zeros,
      source.tensors->require(
          cat(source.base, "qzeros"), DType::kI32, {groups, matrix.rows / kWordCodes}));
  auto* out = reinterpret_cast<std::uint8_t*>(source.storage->take(groups * matrix.rows));
  for (std::int64_t group = 0; group < groups; ++group) {
    for (std::int64_t word = 0; word < matrix.rows / kWordCodes; ++word) {
      const std::uint32_t packed = word_at(zeros->view, group, word);
      for (std::int64_t i = 0; i < kWordCodes; ++i) {
        const std::int64_t row = word * kWordCodes + column(i);
        out[row * groups + group] = static_cast<std::uint8_t>(nibble(packed, i) + offset);
      }
    }
  }
  matrix.zero_points = out;
  matrix.zero_point_row_stride = groups;
  return {};
}

Status check_bits(const LinearSource& source) {
  const MaybeFact<std::int64_t>& bits = source.config->weight_bits;
  if (bits.has_value() && bits->value != 4) {
    return unsupported(
        cat(bits->value, "-bit weights (", bits->origin, "), nearest supported: 4 bits"));
  }
  return {};
}

Status check_multiple(const NamedTensor& tensor, std::string_view what, std::int64_t extent) {
  if (extent < 1 || extent % kWordCodes != 0) {
    return invalid_argument(cat("tensor ",
                                printable(tensor.name),
                                " has ",
                                extent,
                                " ",
                                what,
                                ", expected a multiple of 8"));
  }
  return {};
}

/// g_idx names the group of every k; only the order that needs no permutation is served.
Status check_group_index(const LinearSource& source,
                         std::string_view suffix,
                         const WeightMatrix& matrix) {
  const std::string name = cat(source.base, suffix);
  if (source.tensors->find(name) == nullptr) {
    return {};
  }
  MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* index,
                          source.tensors->require(name, DType::kI32, {matrix.cols}));
  const auto* groups = static_cast<const std::int32_t*>(index->view.data);
  for (std::int64_t k = 0; k < matrix.cols; ++k) {
    if (groups[k] != k / matrix.group_size) {
      return unsupported(cat("tensor ",
                             printable(name),
                             " puts column ",
                             k,
                             " into group ",
                             groups[k],
                             ", nearest supported: consecutive groups of ",
                             matrix.group_size,
                             " (desc_act false)"));
    }
  }
  return {};
}

/// compressed-tensors zero points i32 [N / 8, groups], packed along N.
Status adopt_packed_zeros(const LinearSource& source, std::int64_t groups, WeightMatrix& matrix) {
  const std::string name = cat(source.base, "weight_zero_point");
  if (source.tensors->find(name) == nullptr) {
    return {};
  }
  const std::int64_t words = (matrix.rows + kWordCodes - 1) / kWordCodes;
  MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* zeros,
                          source.tensors->require(name, DType::kI32, {words, groups}));
  auto* out = reinterpret_cast<std::uint8_t*>(source.storage->take(groups * matrix.rows));
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    for (std::int64_t group = 0; group < groups; ++group) {
      const std::uint32_t packed = word_at(zeros->view, row / kWordCodes, group);
      out[row * groups + group] = static_cast<std::uint8_t>(nibble(packed, row % kWordCodes));
    }
  }
  matrix.zero_points = out;
  matrix.zero_point_row_stride = groups;
  return {};
}

}  // namespace

Result<WeightMatrix> read_rows(const LinearSource& source, const LinearScheme& scheme) {
  MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* codes, require_matrix(source, scheme.codes));
  WeightMatrix matrix;
  matrix.format = scheme.format;
  matrix.rows = codes->view.shape[0];
  matrix.cols = codes->view.shape[1] * (dtype_bits(scheme.codes_dtype) == 8 ? 2 : 1);
  matrix.codes = codes->view.data;
  matrix.row_stride_bytes = code_row_bytes(scheme.format, matrix.cols);
  if (scheme.scales.empty()) {
    return matrix;
  }
  const std::string name = cat(source.base, scheme.scales);
  const std::int64_t scale_cols = num_scale_cols(matrix);
  matrix.scale_row_stride_bytes = scale_cols;
  const NamedTensor* stored = source.tensors->find(name);
  const bool powers =
      scheme.scales_dtype == DType::kE8m0 && stored != nullptr && has_dtype(*stored, DType::kF32);
  MOEKIT_ASSIGN_OR_RETURN(
      const NamedTensor* scales,
      source.tensors->require(name,
                              powers ? DType::kF32 : scheme.scales_dtype.value_or(DType::kE8m0),
                              {matrix.rows, scale_cols}));
  matrix.scales = scales->view.data;
  if (powers) {
    MOEKIT_ASSIGN_OR_RETURN(matrix.scales, bytes_of_powers(*scales, *source.storage));
  }
  return matrix;
}

Result<WeightMatrix> read_fp8_blocks(const LinearSource& source, const LinearScheme& scheme) {
  MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* codes, require_matrix(source, scheme.codes));
  WeightMatrix matrix;
  matrix.format = scheme.format;
  matrix.rows = codes->view.shape[0];
  matrix.cols = codes->view.shape[1];
  matrix.codes = codes->view.data;
  matrix.row_stride_bytes = matrix.cols;
  MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* scales, require_matrix(source, scheme.scales));
  const std::int64_t block_rows = num_scale_rows(matrix);
  const std::int64_t block_cols = num_scale_cols(matrix);
  if (scales->view.shape[0] != block_rows || scales->view.shape[1] != block_cols) {
    return unsupported(cat("tensor ",
                           printable(scales->name),
                           " has shape ",
                           shape_text(scales->view),
                           ", nearest supported: one scale per 128 x 128, [",
                           block_rows,
                           ", ",
                           block_cols,
                           "]"));
  }
  const DType dtype = scales->view.dtype;
  if (is_float(dtype)) {
    matrix.scales = scales->view.data;
    matrix.scale_dtype = dtype;
    matrix.scale_row_stride_bytes = block_cols * dtype_bits(dtype) / 8;
    return matrix;
  }
  if (dtype != DType::kE8m0 && dtype != DType::kU8) {
    return unsupported(cat("tensor ",
                           printable(scales->name),
                           " has dtype ",
                           dtype_name(dtype),
                           ", nearest supported: f32, bf16, f16, e8m0"));
  }
  auto* widened = reinterpret_cast<float*>(source.storage->take(block_rows * block_cols * 4));
  const auto* bytes = static_cast<const std::uint8_t*>(scales->view.data);
  for (std::int64_t i = 0; i < block_rows * block_cols; ++i) {
    // E8M0 255 is NaN, which validation then refuses by row and group.
    const std::uint32_t bits = bytes[i] == 0     ? 0x0040'0000U
                               : bytes[i] == 255 ? 0x7FC0'0000U
                                                 : std::uint32_t{bytes[i]} << 23;
    widened[i] = std::bit_cast<float>(bits);
  }
  matrix.scales = widened;
  matrix.scale_dtype = DType::kF32;
  matrix.scale_row_stride_bytes = block_cols * 4;
  return matrix;
}

Result<WeightMatrix> read_pack_quantized(const LinearSource& source, const LinearScheme& scheme) {
  MOEKIT_RETURN_IF_ERROR(check_bits(source));
  MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* codes, require_matrix(source, scheme.codes));
  MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* scales, require_floats(source, scheme.scales));
  WeightMatrix matrix;
  matrix.format = scheme.format;
  matrix.rows = codes->view.shape[0];
  matrix.cols = codes->view.shape[1] * kWordCodes;
  matrix.codes = codes->view.data;  // little-endian words, low bits first: already in pairs order
  matrix.row_stride_bytes = matrix.cols / 2;
  const std::string shape_name = cat(source.base, "weight_shape");
  if (source.tensors->find(shape_name) != nullptr) {
    MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* shape,
                            source.tensors->require(shape_name, DType::kI64, {2}));
    const auto* extents = static_cast<const std::int64_t*>(shape->view.data);
    if (extents[0] != matrix.rows || extents[1] != matrix.cols) {
      return unsupported(cat("tensor ",
                             printable(shape_name),
                             " is [",
                             extents[0],
                             ", ",
                             extents[1],
                             "], but 4-bit codes of ",
                             printable(codes->name),
                             " are [",
                             matrix.rows,
                             ", ",
                             matrix.cols,
                             "]; nearest supported: 4 bits"));
    }
  }
  const std::int64_t groups = scales->view.shape[1];
  if (scales->view.shape[0] != matrix.rows) {
    return invalid_argument(cat("tensor ",
                                printable(scales->name),
                                " has shape ",
                                shape_text(scales->view),
                                ", expected ",
                                matrix.rows,
                                " rows"));
  }
  MOEKIT_ASSIGN_OR_RETURN(matrix.group_size, int4_group(source, matrix.cols, groups));
  matrix.scales = scales->view.data;
  matrix.scale_dtype = scales->view.dtype;
  matrix.scale_row_stride_bytes = groups * dtype_bits(scales->view.dtype) / 8;
  MOEKIT_RETURN_IF_ERROR(check_group_index(source, "weight_g_idx", matrix));
  MOEKIT_RETURN_IF_ERROR(adopt_packed_zeros(source, groups, matrix));
  turn_negative_scales(matrix, *source.storage);
  return matrix;
}

Result<WeightMatrix> read_awq(const LinearSource& source, const LinearScheme& scheme) {
  MOEKIT_RETURN_IF_ERROR(check_bits(source));
  MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* codes, require_matrix(source, scheme.codes));
  MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* scales, require_floats(source, scheme.scales));
  WeightMatrix matrix;
  matrix.format = scheme.format;
  matrix.rows = codes->view.shape[1] * kWordCodes;
  matrix.cols = codes->view.shape[0];
  MOEKIT_RETURN_IF_ERROR(check_multiple(*codes, "rows", matrix.cols));
  matrix.row_stride_bytes = matrix.cols / 2;
  std::byte* out = source.storage->take(matrix.rows * matrix.row_stride_bytes);
  // Eight columns k at a time: each of the eight rows of a word gets four whole bytes.
  for (std::int64_t k = 0; k < matrix.cols; k += kWordCodes) {
    for (std::int64_t word = 0; word < codes->view.shape[1]; ++word) {
      std::array<std::uint32_t, 8> rows{};
      for (std::int64_t i = 0; i < kWordCodes; ++i) {
        const std::uint32_t packed = word_at(codes->view, k + i, word);
        for (std::size_t at = 0; at < rows.size(); ++at) {
          rows[at] |= nibble(packed, static_cast<std::int64_t>(at)) << (4 * i);
        }
      }
      for (std::size_t at = 0; at < rows.size(); ++at) {
        const std::int64_t row = word * kWordCodes + kAwqColumns[at];
        std::memcpy(out + row * matrix.row_stride_bytes + k / 2, &rows[at], sizeof rows[at]);
      }
    }
  }
  matrix.codes = out;
  MOEKIT_RETURN_IF_ERROR(adopt_scales(source, *scales, matrix));
  MOEKIT_RETURN_IF_ERROR(adopt_zeros(
      source, [](std::int64_t i) { return kAwqColumns[static_cast<std::size_t>(i)]; }, 0, matrix));
  turn_negative_scales(matrix, *source.storage);
  return matrix;
}

Result<WeightMatrix> read_gptq(const LinearSource& source, const LinearScheme& scheme) {
  MOEKIT_RETURN_IF_ERROR(check_bits(source));
  MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* codes, require_matrix(source, scheme.codes));
  MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* scales, require_floats(source, scheme.scales));
  WeightMatrix matrix;
  matrix.format = scheme.format;
  matrix.rows = codes->view.shape[1];
  matrix.cols = codes->view.shape[0] * kWordCodes;
  MOEKIT_RETURN_IF_ERROR(check_multiple(*codes, "columns", matrix.rows));
  matrix.row_stride_bytes = matrix.cols / 2;
  matrix.codes = transposed<std::uint32_t>(codes->view, *source.storage);
  MOEKIT_RETURN_IF_ERROR(adopt_scales(source, *scales, matrix));
  MOEKIT_RETURN_IF_ERROR(check_group_index(source, "g_idx", matrix));
  const bool whole = source.config->gptq_whole_zeros;
  MOEKIT_RETURN_IF_ERROR(adopt_zeros(
      source, [](std::int64_t i) { return i; }, whole ? 0 : 1, matrix));
  turn_negative_scales(matrix, *source.storage);
  return matrix;
}

bool order_matches(const TensorReader& tensors,
                   const std::string& base,
                   const LinearScheme& scheme) {
  if (scheme.order != StoredOrder::kAwq && scheme.order != StoredOrder::kGptq) {
    return true;
  }
  const NamedTensor* codes = tensors.find(cat(base, scheme.codes));
  const NamedTensor* scales = tensors.find(cat(base, scheme.scales));
  if (codes == nullptr || scales == nullptr || codes->view.rank != 2 || scales->view.rank != 2) {
    return true;  // reading then names what is wrong
  }
  const std::int64_t words = codes->view.shape[1];
  const std::int64_t rows = scales->view.shape[1];
  return scheme.order == StoredOrder::kAwq ? words < rows : words == rows;
}

}  // namespace moekit::checkpoint
