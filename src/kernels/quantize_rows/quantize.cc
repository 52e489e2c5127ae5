// SPDX-License-Identifier: Apache-2.0
#include "kernels/quantize_rows/quantize.h"

#include <cstring>

#include "kernels/quantize_rows/device/quantize_lane.h"

namespace moekit::kernels::quantize_rows {
namespace {

Lane lane_of(const Args& args, std::int64_t row, std::int64_t lane) {
  device::u32 words[4] = {};
  std::memcpy(words, args.x + row * args.x_stride + lane * kLaneElems, sizeof(words));
  return load_lane(words);
}

template <Rule kRule>
void write_lane(const Args& args, std::int64_t row, std::int64_t lane, const LaneResult& result) {
  const std::int64_t lanes = args.num_cols / kLaneElems;
  const std::int64_t at = row * lanes + lane;
  if (args.codes != nullptr) {
    std::memcpy(args.codes + at * lane_code_bytes(kRule), result.codes, lane_code_bytes(kRule));
  }
  if (args.operand != nullptr) {
    std::memcpy(args.operand + at * kLaneElems, result.operand, sizeof(result.operand));
  }
  constexpr int kLanes = lanes_per_group(kRule);
  if (args.scales != nullptr && lane % kLanes == 0) {
    const std::int64_t groups = (lanes + kLanes - 1) / kLanes;
    const std::int64_t group = row * groups + lane / kLanes;
    // Little-endian, as every machine with a CUDA GPU is: the low byte is the byte scale.
    std::memcpy(static_cast<std::uint8_t*>(args.scales) + group * scale_bytes(kRule),
                &result.scale_bits,
                scale_bytes(kRule));
  }
}

template <Rule kRule>
void quantize_matrix(const Args& args) {
  constexpr int kLanes = lanes_per_group(kRule);
  const std::int64_t lanes = args.num_cols / kLaneElems;
  const float global = kRule == Rule::kQ4 ? *args.global : 1.0F;
  for (std::int64_t row = 0; row < args.num_rows; ++row) {
    for (std::int64_t begin = 0; begin < lanes; begin += kLanes) {
      const std::int64_t end = begin + kLanes < lanes ? begin + kLanes : lanes;
      device::u32 amax_bits = 0;
      for (std::int64_t lane = begin; lane < end; ++lane) {
        const device::u32 bits = lane_of(args, row, lane).amax_bits;
        amax_bits = bits > amax_bits ? bits : amax_bits;
      }
      for (std::int64_t lane = begin; lane < end; ++lane) {
        write_lane<kRule>(
            args, row, lane, quantize_lane<kRule>(lane_of(args, row, lane), amax_bits, global));
      }
    }
  }
}

}  // namespace

void quantize_on_host(Rule rule, const Args& args) noexcept {
  switch (rule) {
    case Rule::kQ4:
      return quantize_matrix<Rule::kQ4>(args);
    case Rule::kQ8:
      return quantize_matrix<Rule::kQ8>(args);
    case Rule::kQ8b:
      return quantize_matrix<Rule::kQ8b>(args);
  }
}

}  // namespace moekit::kernels::quantize_rows
