// SPDX-License-Identifier: Apache-2.0
#pragma once

// One variant of the grouped kernels, and every number that planner and kernel must agree on. The
// kernels are not written yet; plans take their geometry from here, and so will they. Freestanding.

#include "device/layout/fp4_tile.h"
#include "device/portable.h"

namespace moekit::kernels::grouped_gemm {

enum class Role : device::i32 { kGateUp = 0, kDown = 1, kResident = 2 };

struct Spec {
  Role role = Role::kGateUp;
  device::i32 group_size = 16;     // of the weights: 16 nvfp4, 32 mxfp4
  device::i32 operand_bits = 16;   // of activations as the tensor cores read them
  device::i32 operand_group = 16;  // activations that share a scale, where operand_bits < 16
  device::i32 block_rows = 8;      // routes of one expert that are multiplied together
  device::i32 tile_n = 128;        // rows of weights
  device::i32 tile_k = 128;
  device::i32 num_stages = 4;
  device::i32 num_warps = 8;
};

constexpr device::i32 kOutputPad = 8;       // elements: rows of the tile on different banks
constexpr device::i32 kRouteBytes = 16;     // route, token, weight and expert of a row
constexpr device::i32 kMaxBlockRows = 128;  // of reference tiles, the widest

inline namespace MOEKIT_ISA {

constexpr device::i32 num_threads(const Spec& s) {
  return s.num_warps * 32;
}

/// Codes and scales of one stage of weights.
constexpr device::i32 stage_weight_bytes(const Spec& s) {
  return s.tile_n / device::kFp4TileRows * (s.tile_k / device::kFp4TileCols) *
         device::fp4_tile_bytes(s.group_size);
}

/// One stage of activations, scales included.
constexpr device::i32 stage_operand_bytes(const Spec& s) {
  const device::i32 scales = s.operand_bits == 16 ? 0 : s.tile_k / s.operand_group;
  return s.block_rows * (s.tile_k * s.operand_bits / 8 + scales);
}

/// The finished tile reuses the stages of the weights where it fits there.
constexpr device::i32 smem_bytes(const Spec& s) {
  const device::i32 weights = s.num_stages * stage_weight_bytes(s);
  const device::i32 output = s.block_rows * (s.tile_n + kOutputPad) * 4;
  return device::round_up((weights > output ? weights : output) +
                              s.num_stages * stage_operand_bytes(s) + s.block_rows * kRouteBytes,
                          128);
}

/// Rows of the padded route list: every expert that has routes may leave block_rows - 1 unused.
constexpr device::i64 padded_routes(device::i64 block_rows,
                                    device::i64 routes,
                                    device::i64 experts) {
  return routes + (routes < experts ? routes : experts) * (block_rows - 1);
}

constexpr device::i64 num_route_blocks(device::i64 block_rows,
                                       device::i64 routes,
                                       device::i64 experts) {
  return device::ceil_div(padded_routes(block_rows, routes, experts), block_rows);
}

/// Null for a variant that a kernel can be compiled for.
constexpr const char* why_invalid(const Spec& s) {
  if (s.group_size != 16 && s.group_size != 32) {
    return "group_size must be 16 or 32";
  }
  if (s.operand_bits != 4 && s.operand_bits != 8 && s.operand_bits != 16) {
    return "operand_bits must be 4, 8 or 16";
  }
  if (s.block_rows < 8 || s.block_rows % 8 != 0 || s.block_rows > kMaxBlockRows) {
    return "block_rows must be a multiple of 8, 8 to 128";
  }
  if (s.tile_n % (device::kFp4TileRows * s.num_warps / 2) != 0) {
    return "tile_n must be a multiple of 8 rows a warp";
  }
  if (s.tile_k % device::kFp4TileCols != 0 || s.tile_k < device::kFp4TileCols) {
    return "tile_k must be a multiple of 64";
  }
  if (s.num_stages < 2 || s.num_stages > 8) {
    return "num_stages must be 2 to 8";
  }
  if (s.num_warps != 4 && s.num_warps != 8) {
    return "num_warps must be 4 or 8";
  }
  return nullptr;
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::kernels::grouped_gemm
