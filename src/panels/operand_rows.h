// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rows of activations to operands: rounded or quantized, then from their rows to the places of a
// tile. Included by the body_*.cc files alone, as body_loops.h is.

#include <cstring>

#include "device/numerics/bf16.h"
#include "device/numerics/quantize.h"
#include "panels/body.h"

namespace moekit::panels {
inline namespace MOEKIT_ISA {

using device::i64;
using device::kPanel16StepCols;
using device::Panel16Shape;
using device::u16;
using device::u32;

inline void store_operand(std::uint16_t bits, std::uint16_t* out) {
  *out = bits;
}

inline void store_operand(std::uint16_t bits, float* out) {
  *out = device::bf16_to_f32(bits);
}

inline constexpr u16 kInfinityBits = 0x7F80;

/// What a row is multiplied by, exactly, before it is worked on, from its largest magnitude. A
/// group is summed before it is scaled, and 32 products of 6 with 2^120 leave f32 however small the
/// scale is: rows that reach 2^100 are worked on 2^32 times smaller, which loses operands below
/// 2^-101 beside others 2^200 times larger. Dot products of bf16 take what is below 2^-126 for
/// zero, and half of 2^-126 is, however large the scale is: rows below 2^-94 are worked on 2^32
/// times larger there, where multiply-adds of f32 keep what is subnormal.
template <typename Operand>
float row_unit(u16 largest) {
  constexpr u16 kLargeBits = 0x7180;  // 2^100
  constexpr u16 kSmallBits = 0x1080;  // 2^-94
  if (largest >= kLargeBits && largest < kInfinityBits) {
    return 0x1p-32F;
  }
  const bool is_small = largest > 0 && largest < kSmallBits;
  return sizeof(Operand) == sizeof(u16) && is_small ? 0x1p32F : 1.0F;
}

inline u16 fold_magnitude(u16 largest, u16 bits) {
  const auto magnitude = static_cast<u16>(bits & 0x7FFFU);
  return magnitude > largest ? magnitude : largest;
}

/// The largest magnitude among the elements, as bf16 bits; without branches, so that the loop
/// vectorises.
template <typename Operand, typename Source, typename ToBf16>
u16 load_elements(const Source* source, i64 count, Operand* out, ToBf16 to_bf16) {
  u16 largest = 0;
  for (i64 i = 0; i < count; ++i) {
    const u16 bits = to_bf16(source[i]);
    largest = fold_magnitude(largest, bits);
    store_operand(bits, out + i);
  }
  return largest;
}

// One group of a row, its f32 values after the rounding to bf16.
struct QuantizedGroup {
  const float* values;
  i64 count;
  u32 amax;
};

template <typename Operand>
void quantize_q4(const QuantizedGroup& group, float global, Operand* out) {
  const u32 scale = device::q4_scale(group.amax, global);
  const float divisor = device::q4_divisor(scale, global);
  for (i64 i = 0; i < group.count; ++i) {
    store_operand(device::q4_operand(device::q4_code(group.values[i], divisor), scale), out + i);
  }
}

template <typename Operand>
void quantize_q8(const QuantizedGroup& group, Operand* out) {
  const u32 byte = device::q8_byte(group.amax);
  for (i64 i = 0; i < group.count; ++i) {
    store_operand(device::q8_operand(device::q8_payload(group.values[i], byte), byte), out + i);
  }
}

template <typename Operand>
void quantize_q8b(const QuantizedGroup& group, float* scale, Operand* out) {
  *scale = device::q8b_scale(group.amax);
  for (i64 i = 0; i < group.count; ++i) {
    const u32 payload = device::q8b_payload(group.values[i], *scale);
    store_operand(device::bf16_from_f32(device::e4m3_to_f32(payload)), out + i);
  }
}

inline i64 quantizer_group(Quantizer quantizer) {
  return quantizer == Quantizer::kQ4   ? device::kQ4GroupSize
         : quantizer == Quantizer::kQ8 ? device::kQ8GroupSize
                                       : device::kQ8bGroupSize;
}

inline float source_value(const OperandRow& row, i64 col) {
  u16 bits = 0;
  switch (row.dtype) {
    case DType::kF32:
      bits = device::bf16_from_f32(static_cast<const float*>(row.source)[col]);
      break;
    case DType::kF16:
      bits = device::bf16_from_f32(
          device::f16_to_f32(static_cast<const std::uint16_t*>(row.source)[col]));
      break;
    default:
      bits = static_cast<const std::uint16_t*>(row.source)[col];
      break;
  }
  return device::bf16_to_f32(bits);
}

template <typename Operand>
bool quantize_row(const OperandRow& row, Operand* out) {
  const i64 group_cols = quantizer_group(row.quantizer);
  float values[device::kQ8bGroupSize];
  bool finite = true;
  for (i64 first = 0; first < row.cols; first += group_cols) {
    QuantizedGroup group{values, row.cols - first, 0};
    group.count = group.count < group_cols ? group.count : group_cols;
    for (i64 i = 0; i < group.count; ++i) {
      values[i] = source_value(row, first + i);
      group.amax = device::fold_amax(group.amax, values[i]);
    }
    finite = finite && group.amax < 0x7F800000U;
    switch (row.quantizer) {
      case Quantizer::kQ4:
        quantize_q4(group, row.global, out + first);
        break;
      case Quantizer::kQ8:
        quantize_q8(group, out + first);
        break;
      case Quantizer::kQ8b:
        quantize_q8b(group, row.scales + first / group_cols, out + first);
        break;
      case Quantizer::kNone:
        break;
    }
  }
  return finite;
}

// Returns the largest magnitude as bf16 bits.
template <typename Operand>
u16 round_row(const OperandRow& row, Operand* out) {
  switch (row.dtype) {
    case DType::kF32:
      return load_elements(static_cast<const float*>(row.source), row.cols, out, [](float value) {
        return device::bf16_from_f32(value);
      });
    case DType::kF16:
      return load_elements(
          static_cast<const std::uint16_t*>(row.source), row.cols, out, [](std::uint16_t bits) {
            return device::bf16_from_f32(device::f16_to_f32(bits));
          });
    default:
      return load_elements(
          static_cast<const std::uint16_t*>(row.source), row.cols, out, [](std::uint16_t bits) {
            return bits;
          });
  }
}

inline float operand_value(std::uint16_t bits) {
  return device::bf16_to_f32(bits);
}

inline float operand_value(float value) {
  return value;
}

template <typename Operand>
u16 largest_operand(const Operand* operands, i64 count) {
  u32 largest = 0;
  for (i64 i = 0; i < count; ++i) {
    largest = device::fold_amax(largest, operand_value(operands[i]));
  }
  return static_cast<u16>(largest >> 16);
}

/// What sums over the row are to be multiplied with then.
template <typename Operand>
float bring_in_range(Operand* out, i64 count, u16 largest) {
  const float unit = row_unit<Operand>(largest);
  for (i64 i = 0; unit != 1.0F && i < count; ++i) {
    store_operand(device::bf16_from_f32(operand_value(out[i]) * unit), out + i);
  }
  return 1.0F / unit;
}

/// An f32 that rounds to infinity counts as infinite: the operand is what the recipe multiplies.
template <typename Operand>
LoadedRow load_operand(const OperandRow& row, const Panel16Shape& shape, std::byte* operand) {
  auto* out = reinterpret_cast<Operand*>(operand);
  const i64 lead = device::panel16_lead_cols(shape);
  const i64 padded = device::panel16_num_steps(shape) * kPanel16StepCols;
  for (i64 i = 0; i < lead; ++i) {
    out[i] = Operand{};
  }
  for (i64 i = lead + row.cols; i < padded; ++i) {
    out[i] = Operand{};
  }
  out += lead;
  LoadedRow loaded;
  if (row.quantizer == Quantizer::kNone) {
    const u16 largest = round_row(row, out);
    loaded.finite = largest < kInfinityBits;
    loaded.factor = bring_in_range(out, row.cols, largest);
    return loaded;
  }
  loaded.finite = quantize_row(row, out);
  loaded.factor = row.quantizer == Quantizer::kQ4
                      ? row.global
                      : bring_in_range(out, row.cols, largest_operand(out, row.cols));
  return loaded;
}

/// Rows of bf16 without a quantizer that fill whole steps and are worked on as they are.
inline bool is_bf16_operand(const OperandRow& row, const Panel16Shape& shape, LoadedRow* loaded) {
  if (row.dtype != DType::kBf16 || row.quantizer != Quantizer::kNone ||
      device::panel16_lead_cols(shape) != 0 || row.cols % kPanel16StepCols != 0) {
    return false;
  }
  const auto* bits = static_cast<const u16*>(row.source);
  u16 largest = 0;
  for (i64 i = 0; i < row.cols; ++i) {
    largest = fold_magnitude(largest, bits[i]);
  }
  *loaded = {.finite = largest < kInfinityBits};
  return row_unit<u16>(largest) == 1.0F;
}

// Pairs [begin, end) of kRows rows from the `first` on.
template <typename Pair, int kRows>
void interleave_rows(const InterleaveCall& call, i64 first, i64 begin, i64 end) {
  const Pair* rows[kRows];
  for (int i = 0; i < kRows; ++i) {
    rows[i] = reinterpret_cast<const Pair*>(call.rows[first + i]);
  }
  const i64 num_tokens = call.num_tokens;
  auto* out = reinterpret_cast<Pair*>(call.tile) + begin * num_tokens + call.first_token + first;
  for (i64 pair = begin; pair < end; ++pair, out += num_tokens) {
    for (int i = 0; i < kRows; ++i) {
      std::memcpy(out + i, rows[i] + pair, sizeof(Pair));
    }
  }
}

// Four pairs of four rows: so many bytes of each row, and of the tile for each pair, are a vector
// of 16.
struct FourPairs {
  using Vector [[gnu::vector_size(16)]] = u32;
  Vector rows[4];
};

inline void transpose(FourPairs* pairs) {
  using Vector = FourPairs::Vector;
  const Vector* in = pairs->rows;
  const Vector low01 = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
  const Vector high01 = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
  const Vector low23 = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
  const Vector high23 = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
  pairs->rows[0] = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
  pairs->rows[1] = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
  pairs->rows[2] = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
  pairs->rows[3] = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
}

// interleave_rows<Pair, 4> for pairs of bf16, by vectors.
inline void interleave_four_rows(const InterleaveCall& call, i64 first, i64 begin, i64 end) {
  constexpr i64 kPairBytes = 4;
  const std::byte* const* rows = call.rows + first;
  const i64 stride = call.num_tokens * kPairBytes;
  std::byte* out = call.tile + begin * stride + (call.first_token + first) * kPairBytes;
  for (i64 pair = begin; pair < end; pair += 4, out += 4 * stride) {
    FourPairs pairs;
    for (int i = 0; i < 4; ++i) {
      std::memcpy(&pairs.rows[i], rows[i] + pair * kPairBytes, sizeof(pairs.rows[i]));
    }
    transpose(&pairs);
    for (int i = 0; i < 4; ++i) {
      std::memcpy(out + i * stride, &pairs.rows[i], sizeof(pairs.rows[i]));
    }
  }
}

template <typename Operand>
void interleave(const InterleaveCall& call) {
  struct Pair {
    Operand values[2];
  };

  // So many that what is written stays in L1 until every row has passed over it. A step is 4 pairs.
  constexpr i64 kChunkPairs = 64;
  for (i64 begin = 0; begin < call.num_pairs; begin += kChunkPairs) {
    const i64 end = begin + kChunkPairs < call.num_pairs ? begin + kChunkPairs : call.num_pairs;
    i64 row = 0;
    for (; row + 4 <= call.num_rows; row += 4) {
      if constexpr (sizeof(Pair) == 4) {
        interleave_four_rows(call, row, begin, end);
      } else {
        interleave_rows<Pair, 4>(call, row, begin, end);
      }
    }
    switch (call.num_rows - row) {
      case 3:
        interleave_rows<Pair, 3>(call, row, begin, end);
        break;
      case 2:
        interleave_rows<Pair, 2>(call, row, begin, end);
        break;
      case 1:
        interleave_rows<Pair, 1>(call, row, begin, end);
        break;
      default:
        break;
    }
  }
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::panels
