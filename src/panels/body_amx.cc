// SPDX-License-Identifier: Apache-2.0

// AMX with BF16. A tile of weights is 32 columns of 16 rows: four steps of the packed layout, whose
// lines of bf16 pairs are rows of the B operand as they stand. Codes are decoded once into a ring
// of such tiles in L1, group scales folded in (exact: code * scale has at most 6 significant bits),
// and multiplied with up to 64 tokens, whose rows are the A operands. One f32 chain over all of K.
//
// Elements with f32 scales, and the rare panels whose folded weights could leave bf16, go through
// the AVX-512 body: its operands for one token are a row here.

#include <algorithm>
#include <cstring>

#include "panels/body_loops.h"
#include "panels/instructions_amx.h"

namespace moekit::panels {

namespace {

constexpr i64 kTileSteps = 4;
constexpr i64 kTileBytes = 1024;
constexpr i64 kTileRowBytes = 64;
constexpr i64 kTileTokens = 16;
constexpr i64 kMostTokens = 64;
// Tiles decoded ahead of the multiplication. A tile load waits for stores still on their way to L1,
// nothing is forwarded to it, so that they had better be two tiles old.
constexpr i64 kAhead = 2;
constexpr i64 kRing = 4;
// Folded weights and their products stay normal: from this E8M0 byte on a weight is at least 2^-65
// and its product with any x above 2^-61 counts. Panels with smaller ones are summed group by
// group before they are scaled.
constexpr int kLeastFoldedScale = 63;

// Names of the tile registers: sums 0 to 3, two operands of whole tiles in turn, weights, and the
// operand of the last tile, which may have fewer tokens.
constexpr int kEvenTokens = 4;
constexpr int kOddTokens = 5;
constexpr int kWeights = 6;
constexpr int kLastTokens = 7;

// How the tokens of a call lie in tiles: all of `rows`, the last of what is left.
struct TokenTiles {
  i64 count;
  i64 rows;
  i64 last_rows;

  explicit TokenTiles(i64 num_tokens)
      : count(device::ceil_div(num_tokens, kTileTokens)),
        rows(device::ceil_div(num_tokens, count)),
        last_rows(num_tokens - (count - 1) * rows) {}
};

// What this thread's tiles are configured for; 0: nothing. Loading a configuration costs as much
// as some ten tile products, and most calls follow one of the same number of tokens.
thread_local i64 configured_tokens = 0;

void configure(i64 num_tokens, const TokenTiles& tokens) {
  if (configured_tokens == num_tokens) {
    return;
  }
  TileConfig config;
  for (std::size_t tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kTileRowBytes;
    config.rows[tile] = static_cast<std::uint8_t>(tokens.rows);
  }
  config.rows[tokens.count - 1] = static_cast<std::uint8_t>(tokens.last_rows);
  config.rows[kLastTokens] = static_cast<std::uint8_t>(tokens.last_rows);
  config.rows[kWeights] = kPanelRows;
  load_config(config);
  configured_tokens = num_tokens;
}

void finish() {
  if (configured_tokens != 0) {
    release_tiles();
    configured_tokens = 0;
  }
}

LoadedRow load_operand_row(const OperandRow& row, const Panel16Shape& shape, std::byte* operand) {
  auto* out = reinterpret_cast<std::uint16_t*>(operand);
  const i64 steps = device::panel16_num_steps(shape);
  const i64 padded = device::round_up(steps, kTileSteps);
  std::fill(out + steps * kPanel16StepCols, out + padded * kPanel16StepCols, std::uint16_t{0});
  return load_operand<std::uint16_t>(row, shape, operand);
}

// One tile of weights times all tokens. `row_tile` is the distance of two tiles of tokens.
template <int kTiles>
void multiply(const std::byte* weights, const std::byte* x, i64 stride, i64 row_tile) {
  load_tile<kWeights>(weights, kTileRowBytes);
  if constexpr (kTiles > 1) {
    load_tile<kEvenTokens>(x, stride);
    add_products<0, kEvenTokens, kWeights>();
  }
  if constexpr (kTiles > 2) {
    load_tile<kOddTokens>(x + row_tile, stride);
    add_products<1, kOddTokens, kWeights>();
  }
  if constexpr (kTiles > 3) {
    load_tile<kEvenTokens>(x + 2 * row_tile, stride);
    add_products<2, kEvenTokens, kWeights>();
  }
  load_tile<kLastTokens>(x + (kTiles - 1) * row_tile, stride);
  add_products<kTiles - 1, kLastTokens, kWeights>();
}

template <int kTiles>
void zero_all_sums() {
  zero_sums<kTiles - 1>();
  if constexpr (kTiles > 1) {
    zero_all_sums<kTiles - 1>();
  }
}

template <int kTiles>
void store_all_sums(float* sums, i64 rows) {
  store_tile<kTiles - 1>(sums + (kTiles - 1) * rows * kPanelRows, kTileRowBytes);
  if constexpr (kTiles > 1) {
    store_all_sums<kTiles - 1>(sums, rows);
  }
}

// The lines of a panel of bf16, which are tiles as they stand, except for the last.
class Bf16Stream {
 public:
  Bf16Stream(const std::byte* panel, const Panel16Shape& shape)
      : lines_(panel), left_(device::panel16_num_steps(shape) * 4) {}

  const std::byte* next_tile(std::byte* room) {
    for (i64 at = 0; at < kTileBytes; at += kPanel16LineBytes) {
      prefetch_ahead(lines_ + at);
    }
    const std::byte* tile = lines_;
    if (left_ < kTileBytes / kPanel16LineBytes) {
      std::memset(room, 0, kTileBytes);
      std::memcpy(room, lines_, static_cast<std::size_t>(left_ * kPanel16LineBytes));
      tile = room;
    }
    lines_ += kTileBytes;
    left_ -= kTileBytes / kPanel16LineBytes;
    return tile;
  }

  [[nodiscard]] bool folds() const { return true; }

 private:
  const std::byte* lines_;
  i64 left_;
};

// The 16 rows' values in the low and the high half of each lane.
__m512i in_both_halves(__m512i values) {
  return _mm512_or_si512(_mm512_and_si512(values, _mm512_set1_epi32(0xFFFF)),
                         _mm512_slli_epi32(values, 16));
}

// A permute of 16-bit lanes reads five bits of its index, and the fifth belongs to the next code:
// the table stands twice.
__m512i code_table(const std::uint16_t (&magnitudes)[8]) {
  alignas(64) std::uint16_t values[32];
  for (int i = 0; i < 32; ++i) {
    values[i] = static_cast<std::uint16_t>(magnitudes[i % 8] | ((i & 8) != 0 ? 0x8000U : 0U));
  }
  return _mm512_load_si512(values);
}

constexpr int kMagnitude = 0x7FFF;

// mxfp4: a power of two is added to the exponents of all codes but the zeros.
struct Mxfp4Decode {
  static constexpr Panel16Element kElement = Panel16Element::kMxfp4;
  // bf16(E2M1)
  static constexpr std::uint16_t kMagnitudes[8] = {
      0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0};

  static __m512i scale(__m512i codes) {
    return in_both_halves(_mm512_slli_epi32(_mm512_sub_epi32(codes, _mm512_set1_epi32(127)), 7));
  }

  static __m512i weights(__m512i values, __m512i scale) {
    const __mmask32 nonzero = _mm512_test_epi16_mask(values, _mm512_set1_epi16(kMagnitude));
    return _mm512_mask_add_epi16(values, nonzero, values, scale);
  }

  static bool folds(__m512i least) {
    return _mm512_cmplt_epi32_mask(least, _mm512_set1_epi32(kLeastFoldedScale)) == 0;
  }
};

// nvfp4: the product of two f16, exact with room below (the least is 2^-10), its bits moved to
// where bf16 has them. A stored E5M3 byte in f16's place reads 2^-5 of its value; the table has
// 2^5.
struct Nvfp4Decode {
  static constexpr Panel16Element kElement = Panel16Element::kNvfp4;
  // f16(32 * E2M1)
  static constexpr std::uint16_t kMagnitudes[8] = {
      0x0000, 0x4C00, 0x5000, 0x5200, 0x5400, 0x5600, 0x5800, 0x5A00};

  static __m512i scale(__m512i codes) { return in_both_halves(_mm512_slli_epi32(codes, 7)); }

  static __m512i weights(__m512i values, __m512i scale) {
    const __m512i products =
        _mm512_castph_si512(_mm512_mul_ph(_mm512_castsi512_ph(values), _mm512_castsi512_ph(scale)));
    const __mmask32 nonzero = _mm512_test_epi16_mask(products, _mm512_set1_epi16(kMagnitude));
    const __m512i moved = _mm512_and_si512(_mm512_srai_epi16(products, 3),
                                           _mm512_set1_epi16(static_cast<short>(0x8FFF)));
    return _mm512_mask_add_epi16(moved, nonzero, moved, _mm512_set1_epi16((127 - 15) << 7));
  }

  static bool folds(__m512i /*least*/) { return true; }
};

// Walks the lines of a panel of codes and decodes four at a time.
template <typename Decode>
class CodeStream {
 public:
  CodeStream(const std::byte* panel, const Panel16Shape& shape)
      : line_(panel),
        step_(device::panel16_first_step(shape)),
        end_(step_ + device::panel16_num_steps(shape)),
        table_(code_table(Decode::kMagnitudes)) {
    const i64 in_block = step_ % kBlockSteps;
    if (in_block != 0) {
      scales_ = line_ + in_block / kGroupSteps * device::kPanel16Rows;
      line_ += kPanel16LineBytes;
      read_scale();
    }
  }

  const std::byte* next_tile(std::byte* room) {
    for (i64 i = 0; i < kTileSteps; ++i, ++step_) {
      auto* rows = reinterpret_cast<__m512i*>(room + i * 4 * kTileRowBytes);
      if (step_ >= end_) {
        for (i64 pair = 0; pair < 4; ++pair) {
          _mm512_store_si512(rows + pair, _mm512_setzero_si512());
        }
        continue;
      }
      advance_scale();
      prefetch_ahead(line_);
      const __m512i words = _mm512_loadu_si512(line_);
      line_ += kPanel16LineBytes;
      store_pair(words, rows);
      store_pair(_mm512_srli_epi16(words, 4), rows + 1);
      store_pair(_mm512_srli_epi16(words, 8), rows + 2);
      store_pair(_mm512_srli_epi16(words, 12), rows + 3);
    }
    return room;
  }

  /// That all weights of the panel were bf16 with room below.
  [[nodiscard]] bool folds() const { return Decode::folds(least_); }

 private:
  static constexpr i64 kGroupSteps =
      device::panel16_own_group_cols(Decode::kElement) / kPanel16StepCols;
  static constexpr i64 kBlockSteps = device::kPanel16BlockGroups * kGroupSteps;

  void advance_scale() {
    if (step_ % kBlockSteps == 0) {
      scales_ = line_;
      prefetch_ahead(line_);
      line_ += kPanel16LineBytes;
      read_scale();
    } else if (step_ % kGroupSteps == 0) {
      scales_ += device::kPanel16Rows;
      read_scale();
    }
  }

  void read_scale() {
    const __m512i codes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales_)));
    least_ = _mm512_min_epi32(least_, codes);
    scale_ = Decode::scale(codes);
  }

  void store_pair(__m512i codes, __m512i* row) const {
    _mm512_store_si512(row, Decode::weights(_mm512_permutexvar_epi16(codes, table_), scale_));
  }

  const std::byte* line_;
  const std::byte* scales_ = nullptr;
  i64 step_;
  i64 end_;
  __m512i table_;
  __m512i scale_ = _mm512_setzero_si512();
  __m512i least_ = _mm512_set1_epi32(255);
};

// False where the panel's weights do not fold; its sums are then to be computed otherwise.
template <typename Stream, int kTiles>
bool dot_tiles(const std::byte* panel, const DotCall& call, const TokenTiles& tokens, float* sums) {
  alignas(64) std::byte ring[kRing * kTileBytes];
  const std::byte* tiles[kRing];
  const i64 stride = call.operand_row_bytes;
  const i64 count = device::ceil_div(device::panel16_num_steps(*call.shape), kTileSteps);
  zero_all_sums<kTiles>();
  Stream stream(panel, *call.shape);
  for (i64 tile = 0; tile < count + kAhead; ++tile) {
    if (tile < count) {
      tiles[tile % kRing] = stream.next_tile(ring + tile % kRing * kTileBytes);
    }
    if (tile >= kAhead) {
      const i64 ready = tile - kAhead;
      multiply<kTiles>(
          tiles[ready % kRing], call.operand + ready * kTileRowBytes, stride, tokens.rows * stride);
    }
  }
  store_all_sums<kTiles>(sums, tokens.rows);
  return stream.folds();
}

template <typename Stream>
bool dot_panel(const std::byte* panel, const DotCall& call, const TokenTiles& tokens, float* sums) {
  switch (tokens.count) {
    case 1:
      return dot_tiles<Stream, 1>(panel, call, tokens, sums);
    case 2:
      return dot_tiles<Stream, 2>(panel, call, tokens, sums);
    case 3:
      return dot_tiles<Stream, 3>(panel, call, tokens, sums);
    default:
      return dot_tiles<Stream, 4>(panel, call, tokens, sums);
  }
}

// Group by group, one token after the other.
void dot_unfolded(const std::byte* panel, const DotCall& call, float* sums) {
  for (i64 token = 0; token < call.num_tokens; ++token) {
    DotCall alone = call;
    alone.panels = panel;
    alone.num_panels = 1;
    alone.operand = call.operand + token * call.operand_row_bytes;
    alone.num_tokens = 1;
    alone.sums = sums + token * kPanelRows;
    kAvx512Body.dot(alone);
  }
}

template <typename Stream>
void dot_folded(const DotCall& call) {
  const Panel16Element element = call.shape->element;
  const bool own_groups =
      device::panel16_group_cols(*call.shape) == device::panel16_own_group_cols(element);
  const TokenTiles tokens(call.num_tokens);
  configure(call.num_tokens, tokens);
  const i64 panel_bytes = device::panel16_panel_bytes(*call.shape);
  for (i64 panel = 0; panel < call.num_panels; ++panel) {
    const std::byte* bytes = call.panels + panel * panel_bytes;
    float* sums = call.sums + panel * call.num_tokens * kPanelRows;
    if (!own_groups || !dot_panel<Stream>(bytes, call, tokens, sums)) {
      dot_unfolded(bytes, call, sums);
    }
  }
}

void dot_amx(const DotCall& call) {
  switch (call.shape->element) {
    case Panel16Element::kBf16:
      return dot_folded<Bf16Stream>(call);
    case Panel16Element::kNvfp4:
      return dot_folded<CodeStream<Nvfp4Decode>>(call);
    case Panel16Element::kMxfp4:
      return dot_folded<CodeStream<Mxfp4Decode>>(call);
    default:
      return;  // kAmxBody.wide_scales serves these
  }
}

}  // namespace

constinit const Body kAmxBody = {Isa::kAmx,
                                 2,
                                 kMostTokens,
                                 load_operand_row,
                                 nullptr,
                                 dot_amx,
                                 activate,
                                 scale,
                                 weighted_sum,
                                 round_to_bf16,
                                 finish,
                                 &kAvx512FmaBody,
                                 48};

}  // namespace moekit::panels
