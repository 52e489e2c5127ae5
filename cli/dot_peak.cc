// SPDX-License-Identifier: Apache-2.0
#include "cli/dot_peak.h"

#include <cstdint>

namespace moekit::cli {
namespace {

/// Repetitions of twelve chains in a round: some ten thousand cycles.
constexpr int kRepeats = 1000;
constexpr int kChains = 12;  // more than latency times issue width of any core so far
/// A tile product keeps its unit for 16 cycles and is ready after 52: six chains, as long a round.
constexpr int kTileChains = 6;
constexpr int kTileRepeats = 125;

#if defined(__x86_64__)

// Pairs of bf16 around 0.5 whose products cancel: sums stay finite, and bits toggle as weights' do,
// since zeros draw less power and run at a higher clock.
constexpr unsigned kFirstPair = 0x3F2B3EABU;   // 0.334, 0.668
constexpr unsigned kSecondPair = 0xBEAB3F2BU;  // 0.668, -0.334

// Instructions and not intrinsics: this file has baseline flags. Registers 16 to 31 are unknown to
// baseline code, so nothing of it is overwritten and no upper halves are left dirty.
/// Operands in 16 and 17, sums in 18 to 29.
void begin_wide_sums() {
  __asm__ volatile(
      "vpbroadcastd %0, %%zmm16\n\t"
      "vpbroadcastd %1, %%zmm17\n\t"
      ".irp sum, 18,19,20,21,22,23,24,25,26,27,28,29\n\t"
      "vpxord %%zmm\\sum, %%zmm\\sum, %%zmm\\sum\n\t"
      ".endr" ::"r"(kFirstPair),
      "r"(kSecondPair));
}

void dot_bf16_round() {
  begin_wide_sums();
  for (int i = 0; i < kRepeats; ++i) {
    __asm__ volatile(
        ".irp sum, 18,19,20,21,22,23,24,25,26,27,28,29\n\t"
        "vdpbf16ps %%zmm17, %%zmm16, %%zmm\\sum\n\t"
        ".endr" ::
            :);
  }
}

void wide_fma_round() {
  begin_wide_sums();
  for (int i = 0; i < kRepeats; ++i) {
    __asm__ volatile(
        ".irp sum, 18,19,20,21,22,23,24,25,26,27,28,29\n\t"
        "vfmadd231ps %%zmm17, %%zmm16, %%zmm\\sum\n\t"
        ".endr" ::
            :);
  }
}

void byte_dot_round() {
  begin_wide_sums();
  for (int i = 0; i < kRepeats; ++i) {
    __asm__ volatile(
        ".irp sum, 18,19,20,21,22,23,24,25,26,27,28,29\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm\\sum\n\t"
        ".endr" ::
            :);
  }
}

/// As ldtilecfg reads it: eight whole tiles, 16 rows of 64 bytes; more must be zero.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

static_assert(sizeof(TileShapes) == 64);

/// Operands in tiles 6 and 7, sums in 0 to 5. Baseline code knows no tiles.
void tile_dot_round() {
  constexpr int kTileWords = 256;
  alignas(64) static constexpr auto kOperands = [] {
    struct {
      unsigned words[2 * kTileWords];
    } made{};
    for (int i = 0; i < kTileWords; ++i) {
      made.words[i] = kFirstPair;
      made.words[kTileWords + i] = kSecondPair;
    }
    return made;
  }();
  const TileShapes shapes;
  __asm__ volatile(
      "ldtilecfg %0\n\t"
      "tileloadd (%1,%3,1), %%tmm6\n\t"
      "tileloadd (%2,%3,1), %%tmm7\n\t"
      ".irp sum, 0,1,2,3,4,5\n\t"
      "tilezero %%tmm\\sum\n\t"
      ".endr" ::"m"(shapes),
      "r"(kOperands.words),
      "r"(kOperands.words + kTileWords),
      "r"(std::int64_t{64})
      : "memory");
  for (int i = 0; i < kTileRepeats; ++i) {
    __asm__ volatile(
        ".irp sum, 0,1,2,3,4,5\n\t"
        "tdpbf16ps %%tmm7, %%tmm6, %%tmm\\sum\n\t"
        ".endr" ::
            :);
  }
  __asm__ volatile("tilerelease");
}

void fma_round() {
  long repeats = kRepeats;
  __asm__ volatile(
      ".irp sum, 0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      "vxorps %%ymm\\sum, %%ymm\\sum, %%ymm\\sum\n\t"
      ".endr\n\t"
      "vmovd %1, %%xmm12\n\t"
      "vmovd %2, %%xmm13\n\t"
      "vpbroadcastd %%xmm12, %%ymm12\n\t"
      "vpbroadcastd %%xmm13, %%ymm13\n\t"
      "1:\n\t"
      ".irp sum, 0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      "vfmadd231ps %%ymm12, %%ymm13, %%ymm\\sum\n\t"
      ".endr\n\t"
      "dec %0\n\t"
      "jnz 1b\n\t"
      "vzeroupper"
      : "+r"(repeats)
      : "r"(kFirstPair), "r"(kSecondPair)
      : "xmm0",
        "xmm1",
        "xmm2",
        "xmm3",
        "xmm4",
        "xmm5",
        "xmm6",
        "xmm7",
        "xmm8",
        "xmm9",
        "xmm10",
        "xmm11",
        "xmm12",
        "xmm13",
        "cc");
}

#endif

// NOLINTNEXTLINE(modernize-use-using): an alias cannot carry the attribute in both compilers
typedef float F32x4 __attribute__((vector_size(16)));

/// Multiplies and adds of 16-byte vectors, as the portable body has them.
void portable_round() {
  F32x4 sums[kChains] = {};
  F32x4 weight = {1.0F, 0.5F, 0.25F, 0.125F};
  __asm__("" : "+m"(weight));  // unknown to the compiler
  for (int i = 0; i < kRepeats; ++i) {
    for (F32x4& sum : sums) {
      sum = sum * weight + weight;
    }
  }
  __asm__ volatile("" ::"m"(sums));
}

}  // namespace

std::int64_t peak_round_flops(PeakRound round) {
  constexpr std::int64_t kInstructions = std::int64_t{kRepeats} * kChains;
  std::int64_t lanes = 4;  // f32 lanes of a vector
#if defined(__x86_64__)
  lanes = round.isa >= Isa::kAvx512 ? 16 : round.isa == Isa::kAvx2 ? 8 : 4;
#endif
  switch (round.kind) {
    case PeakKind::kDot:
      return kInstructions * 2 * lanes * (lanes == 16 ? 2 : 1);
    case PeakKind::kMultiplyAdd:
      return kInstructions * 2 * lanes;
    case PeakKind::kByteDot:
      return lanes == 16 ? kInstructions * 2 * 4 * lanes : 0;
    case PeakKind::kTile:
      break;
  }
  constexpr std::int64_t kTileFlops = std::int64_t{2} * 16 * 16 * 32;
  return lanes == 16 && round.isa == Isa::kAmx ? kTileFlops * kTileRepeats * kTileChains : 0;
}

void run_peak_round(PeakRound round) {
#if defined(__x86_64__)
  if (round.kind == PeakKind::kTile && round.isa == Isa::kAmx) {
    return tile_dot_round();
  }
  if (round.isa >= Isa::kAvx512) {
    return round.kind == PeakKind::kDot       ? dot_bf16_round()
           : round.kind == PeakKind::kByteDot ? byte_dot_round()
                                              : wide_fma_round();
  }
  if (round.isa == Isa::kAvx2) {
    return fma_round();
  }
#else
  static_cast<void>(round);
#endif
  portable_round();
}

}  // namespace moekit::cli
