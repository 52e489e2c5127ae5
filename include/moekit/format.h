// SPDX-License-Identifier: Apache-2.0
#pragma once

// What weight bytes mean. A format is one row of `kFormats`: element and scale encodings and the
// group that shares a scale. It knows nothing of models, recipes or devices. Adding a format whose
// codecs exist is one row here plus golden vectors: decode, encode, validate, the oracle and the
// CPU's packing all read the row.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "moekit/dtype.h"
#include "moekit/status.h"

#pragma GCC visibility push(default)

namespace moekit {

enum class Format : std::uint8_t { kNvfp4, kMxfp4, kBf16, kFp8Block128, kInt4 };

struct FormatInfo {
  Format format;
  std::string_view name;
  DType element;
  std::optional<DType> scale;  // nullopt: elements stand for themselves
  std::int64_t group_size;     // elements along K that share a scale; 0 without scales
  std::int64_t group_rows;     // rows that share a scale: 128 for blocks, else 1
  bool has_global_scale;  // an f32 per projection is required; optional for other scaled formats
};

inline constexpr std::array kFormats{
    FormatInfo{Format::kNvfp4, "nvfp4", DType::kE2m1, DType::kE4m3, 16, 1, true},
    FormatInfo{Format::kMxfp4, "mxfp4", DType::kE2m1, DType::kE8m0, 32, 1, false},
    FormatInfo{Format::kBf16, "bf16", DType::kBf16, std::nullopt, 0, 1, false},
    FormatInfo{Format::kFp8Block128, "fp8_block128", DType::kE4m3, DType::kF32, 128, 128, false},
    FormatInfo{Format::kInt4, "int4", DType::kI4, DType::kBf16, 128, 1, false},
};

[[nodiscard]] const FormatInfo& format_info(Format format) noexcept;
[[nodiscard]] std::optional<Format> format_from_name(std::string_view name) noexcept;

/// K of every format is a multiple of this; the last scale group may be short.
inline constexpr std::int64_t kExtentMultiple = 8;

/// One weight matrix [rows, cols] as a checkpoint or an engine stores it: `rows` output features,
/// `cols` = K, the contraction. Host memory, owned by somebody else.
///
/// 4-bit codes: two per byte along K, low nibble = even k. Scales: one per group along K, linear
/// rows of ceil((group_offset + cols) / group_size) entries; for blocks of rows one such row per
/// block, ceil((group_row_offset + rows) / group_rows) of them.
///
/// int4: codes 0 to 15 are unsigned and stand for code - zero point. Zero points are one byte each,
/// 0 to 16 (readers of packed zero points that store z - 1 reach 16), in rows like the scales;
/// where there are none the zero point is 8. GPTQ, AWQ and pack-quantized element orders are undone
/// by whoever reads them.
struct WeightMatrix {
  Format format = Format::kBf16;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const void* codes = nullptr;
  std::int64_t row_stride_bytes = 0;
  std::int64_t col_stride_elems = 1;  // other than 1 for kBf16 only (transposed storage)
  const void* scales = nullptr;
  std::int64_t scale_row_stride_bytes = 0;
  std::int64_t group_offset =
      0;  // columns of the first scale group that lie before column 0 (TP shards)
  float global_scale = 1.0F;                  // multiplies the f32 sum; 1 where the format has none
  std::int64_t group_size = 0;                // 0: the format's own; int4 also 32 and 64
  std::int64_t group_row_offset = 0;          // rows of the first scale block that lie above row 0
  std::optional<DType> scale_dtype{};         // empty: the format's own; wide ones: f32, bf16, f16
  const std::uint8_t* zero_points = nullptr;  // int4: [rows, scale cols]; null: all 8
  std::int64_t zero_point_row_stride = 0;
  std::optional<float> input_scale{};  // dequant-side global of the activations it multiplies
};

/// Whether elements of a format may share scales in groups of `group_size`: 0 and the format's own
/// always, int4 also 32 and 64.
[[nodiscard]] constexpr bool takes_group_size(const FormatInfo& info,
                                              std::int64_t group_size) noexcept {
  return group_size == 0 || group_size == info.group_size ||
         (info.element == DType::kI4 && (group_size == 32 || group_size == 64));
}

/// Elements along K that share a scale in `matrix`; 0 without scales.
[[nodiscard]] std::int64_t scale_group_size(const WeightMatrix& matrix) noexcept;

/// Rows of scales that `matrix` has: rows, or blocks of rows; 0 without scales.
[[nodiscard]] std::int64_t num_scale_rows(const WeightMatrix& matrix) noexcept;

/// Bytes of one scale of `matrix`; 0 without scales.
[[nodiscard]] std::int64_t scale_elem_bytes(const WeightMatrix& matrix) noexcept;

/// Number of scale columns that `matrix` has; 0 without scales.
[[nodiscard]] std::int64_t num_scale_cols(const WeightMatrix& matrix) noexcept;

/// Bytes of one row of codes without gaps.
[[nodiscard]] std::int64_t code_row_bytes(Format format, std::int64_t cols) noexcept;

/// Checks extents, strides and every scale. Zero scales and zero globals are legal (value 0); with
/// a global of 0 the block scales may hold anything, since every value is 0 (dormant experts are
/// written with NaN scales there).
///
/// Errors   kInvalidArgument  cols % 8 != 0, strides too small, null pointers, group_offset out of
///                            range
///          kInvalidArgument  NaN or negative block scale (0x80 counts as 0), E8M0 255, NaN,
///                            infinite or negative global; the message names row and group
///          kInvalidArgument  E8M0 253 or 254 where a product exceeds the largest BF16
///          kInvalidArgument  fp8_block128: an E4M3 NaN element, a product beyond f32; int4: a
///                            scale beyond f32 / 16, a zero point above 16
/// Source   spec section 1
[[nodiscard]] Status validate_weights(const WeightMatrix& matrix) noexcept;

/// out[k] = element[row, k] * scale[row, group(k)] in f32; the global scale is not applied. Of int4
/// the element is code - zero point. Exact, but for fp8_block128, whose f32 scales have more digits
/// than a product holds: rounded once. Scales are not judged: see validate_weights.
///
/// Shapes   out [cols]
/// Errors   kInvalidArgument  row out of range, out.size() != cols, extents, strides or pointers
[[nodiscard]] Status decode_row(const WeightMatrix& matrix,
                                std::int64_t row,
                                std::span<float> out) noexcept;

/// Where encode_weights writes. Layout as WeightMatrix, rows without gaps.
struct EncodedWeights {
  std::span<std::byte> codes;   // rows * code_row_bytes(format, cols)
  std::span<std::byte> scales;  // num_scale_rows * num_scale_cols scales; empty without scales
  float global_scale = 1.0F;    // written: the dequant-side global that was chosen
  std::int64_t group_size = 0;  // read: as WeightMatrix has it
};

/// Quantises values [rows, cols] (row major, finite) to `format`: round to nearest, ties to even.
///
/// Numerics nvfp4: global = amax / (6 * 448), scale = E4M3_RNE(group amax / 6 / global), code =
///          E2M1_RNE(x / (decode(scale) * global)); an all-zero tensor gets global 0.
///          mxfp4: scale = 2^(floor(log2(group amax)) - 2) (OCP MX v1.0, 6.3), clamped to E8M0.
///          fp8_block128: scale = block amax / 448, code = E4M3_RNE(x / scale).
///          int4: scale = BF16_RNE(group amax / 7), code = 8 + RNE(x / scale), zero point 8.
/// Errors   kInvalidArgument  sizes that do not fit, cols % 8 != 0, a value that is not finite
[[nodiscard]] Status encode_weights(Format format,
                                    std::span<const float> values,
                                    std::int64_t rows,
                                    EncodedWeights& encoded) noexcept;

}  // namespace moekit

#pragma GCC visibility pop
