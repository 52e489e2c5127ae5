// SPDX-License-Identifier: Apache-2.0
#pragma once

// What weight bytes mean. A format is one row of `kFormats`: element and scale encodings and the
// group they share. It knows nothing of models, recipes or devices. Adding a format whose codecs
// exist is one row here plus golden vectors.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "moekit/dtype.h"
#include "moekit/status.h"

#pragma GCC visibility push(default)

namespace moekit {

enum class Format : std::uint8_t { kNvfp4, kMxfp4, kBf16 };

struct FormatInfo {
  Format format;
  std::string_view name;
  DType element;
  std::optional<DType> scale;  // nullopt: elements stand for themselves
  std::int64_t group_size;     // elements along K that share a scale; 0 without scales
  bool has_global_scale;  // an f32 per projection is required; optional for other scaled formats
};

inline constexpr std::array kFormats{
    FormatInfo{Format::kNvfp4, "nvfp4", DType::kE2m1, DType::kE4m3, 16, true},
    FormatInfo{Format::kMxfp4, "mxfp4", DType::kE2m1, DType::kE8m0, 32, false},
    FormatInfo{Format::kBf16, "bf16", DType::kBf16, std::nullopt, 0, false},
};

[[nodiscard]] const FormatInfo& format_info(Format format) noexcept;
[[nodiscard]] std::optional<Format> format_from_name(std::string_view name) noexcept;

/// K of every format is a multiple of this; the last scale group may be short.
inline constexpr std::int64_t kExtentMultiple = 8;

/// One weight matrix [rows, cols] as a checkpoint or an engine stores it: `rows` output features,
/// `cols` = K, the contraction. Host memory, owned by somebody else.
///
/// 4-bit codes: two per byte along K, low nibble = even k. Scales: one per group along K, linear
/// rows of ceil((group_offset + cols) / group_size) entries.
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
  float global_scale = 1.0F;  // multiplies the f32 sum; 1 where the format has none
};

/// Number of scale columns that `matrix` has; 0 without scales.
[[nodiscard]] std::int64_t num_scale_cols(const WeightMatrix& matrix) noexcept;

/// Bytes of one row of codes without gaps.
[[nodiscard]] std::int64_t code_row_bytes(Format format, std::int64_t cols) noexcept;

/// Checks extents, strides and every scale. Zero scales and zero globals are legal (value 0); with
/// a global of 0 the block scales may hold anything, since every value is 0 (dormant experts are
/// written with NaN scales there).
///
/// Errors   kInvalidArgument  cols % 8 != 0, strides too small, null pointers, group_offset out of
/// range
///          kInvalidArgument  NaN or negative block scale (0x80 counts as 0), E8M0 255, NaN,
///          infinite or
///                            negative global; the message names row and group
///          kInvalidArgument  E8M0 253 or 254 where a product exceeds the largest BF16
/// Source   spec section 1
[[nodiscard]] Status validate_weights(const WeightMatrix& matrix) noexcept;

/// out[k] = element[row, k] * scale[row, group(k)] in f32, exact; the global scale is not applied.
///
/// Shapes   out [cols]
/// Errors   kInvalidArgument  row out of range or out.size() != cols
[[nodiscard]] Status decode_row(const WeightMatrix& matrix,
                                std::int64_t row,
                                std::span<float> out) noexcept;

/// Where encode_weights writes. Layout as WeightMatrix, rows without gaps.
struct EncodedWeights {
  std::span<std::byte> codes;   // rows * code_row_bytes(format, cols)
  std::span<std::byte> scales;  // rows * ceil(cols / group_size); empty without scales
  float global_scale = 1.0F;    // written: the dequant-side global that was chosen
};

/// Quantises values [rows, cols] (row major, finite) to `format`: round to nearest, ties to even.
///
/// Numerics nvfp4: global = amax / (6 * 448), scale = E4M3_RNE(group amax / 6 / global), code =
///          E2M1_RNE(x / (decode(scale) * global)); an all-zero tensor gets global 0.
///          mxfp4: scale = 2^(floor(log2(group amax)) - 2) (OCP MX v1.0, 6.3), clamped to E8M0.
/// Errors   kInvalidArgument  sizes that do not fit, cols % 8 != 0, a value that is not finite
[[nodiscard]] Status encode_weights(Format format,
                                    std::span<const float> values,
                                    std::int64_t rows,
                                    EncodedWeights& encoded) noexcept;

}  // namespace moekit

#pragma GCC visibility pop
