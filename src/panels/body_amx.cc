// SPDX-License-Identifier: Apache-2.0

// AMX with BF16. A tile of weights is 32 columns of 16 rows: four steps of the packed layout, whose
// lines of bf16 pairs are rows of the B operand as they stand. Codes are decoded once into a ring
// of such tiles in L1, group scales folded in (exact: code * scale has at most 6 significant bits),
// and multiplied with up to 64 tokens, whose rows are the A operands. One f32 chain over all of K.
// Panels of a call are walked side by side, a segment of columns of each in turn
// (panel_segments.h): as many as there are sums in tile registers.
//
// Elements with f32 scales, and the rare panels whose folded weights could leave bf16, go through
// the AVX-512 body: its operands for one token are a row here.

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "panels/body_loops.h"
#include "panels/instructions_amx.h"
#include "panels/panel_segments.h"

namespace moekit::panels {

namespace {

using device::u64;

constexpr i64 kTileSteps = 4;
constexpr i64 kTileBytes = 1024;
constexpr i64 kTileRowBytes = 64;
constexpr i64 kTileTokens = 16;
constexpr i64 kMostTokens = 64;
// Tile registers that hold sums: token tiles of one panel, or of several panels side by side.
constexpr i64 kSumTiles = 4;
// 512 columns: 4 KiB of codes, and 16 KiB of 16 tokens' operands, which stay in the first level.
constexpr i64 kSegmentTiles = 16;
// Panels of less than two of those are walked one after the other; their segments are only as long
// as lines are asked for ahead.
constexpr i64 kShortSegmentTiles = 8;
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
  for (i64 sums = tokens.count - 1; sums < kSumTiles; sums += tokens.count) {
    config.rows[sums] = static_cast<std::uint8_t>(tokens.last_rows);
  }
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

template <int kFirst, int kCount>
void zero_all_sums() {
  zero_sums<kFirst>();
  if constexpr (kCount > 1) {
    zero_all_sums<kFirst + 1, kCount - 1>();
  }
}

// A tile of weights whose products come in the next segment.
struct Job {
  const std::byte* weights = nullptr;
  const std::byte* x = nullptr;  // the first token's operands of these columns
  i64 panel_of_pass = 0;
  i64 panels_to_store = 0;  // behind the last product of a pass
};

// Sums of the panels of a pass, in tile registers, and where the next pass's go.
template <int kTiles>
class PassSums {
 public:
  static constexpr i64 kPanels = kSumTiles / kTiles;

  PassSums(const DotCall& call, const TokenTiles& tokens)
      : sums_(call.sums),
        sums_of_panel_(call.num_tokens * kPanelRows),
        sums_of_tile_(tokens.rows * kPanelRows),
        stride_(call.operand_row_bytes),
        row_tile_(tokens.rows * call.operand_row_bytes) {
    zero_all_sums<0, kPanels * kTiles>();
  }

  /// A tile of weights, and the last tile of tokens.
  [[gnu::always_inline]] void load(const std::byte* weights, const std::byte* x) const {
    load_tile<kLastTokens>(x + (kTiles - 1) * row_tile_, stride_);
    load_tile<kWeights>(weights, kTileRowBytes);
  }

  /// Their products, and those of the other tokens.
  template <int kPanel>
  [[gnu::always_inline]] void add(const std::byte* x) const {
    constexpr int kSums = kPanel * kTiles;
    add_products<kSums + kTiles - 1, kLastTokens, kWeights>();
    if constexpr (kTiles > 1) {
      load_tile<kEvenTokens>(x, stride_);
      add_products<kSums, kEvenTokens, kWeights>();
    }
    if constexpr (kTiles > 2) {
      load_tile<kOddTokens>(x + row_tile_, stride_);
      add_products<kSums + 1, kOddTokens, kWeights>();
    }
    if constexpr (kTiles > 3) {
      load_tile<kEvenTokens>(x + 2 * row_tile_, stride_);
      add_products<kSums + 2, kEvenTokens, kWeights>();
    }
  }

  /// Behind a pass's last product: a tile that is stored waits for its products and keeps those
  /// behind it waiting.
  void store(i64 num_panels) {
    store_panels<0>(num_panels);
    sums_ += num_panels * sums_of_panel_;
  }

 private:
  template <int kPanel>
  void store_panels(i64 num_panels) const {
    if (kPanel >= num_panels) {
      return;
    }
    store_tiles<kPanel * kTiles, kTiles>(sums_ + kPanel * sums_of_panel_);
    if constexpr (kPanel + 1 < kPanels) {
      store_panels<kPanel + 1>(num_panels);
    }
  }

  template <int kSums, int kCount>
  void store_tiles(float* sums) const {
    store_tile<kSums>(sums, kTileRowBytes);
    zero_sums<kSums>();
    if constexpr (kCount > 1) {
      store_tiles<kSums + 1, kCount - 1>(sums + sums_of_tile_);
    }
  }

  float* sums_;
  i64 sums_of_panel_;
  i64 sums_of_tile_;
  i64 stride_;
  i64 row_tile_;  // from one tile of tokens to the next
};

// The tiles of a segment of bf16, which are lines as they stand, except for a panel's last.
class Bf16Tiles {
 public:
  explicit Bf16Tiles(const Panel16Shape& shape)
      : panel_bytes_(device::panel16_panel_bytes(shape)) {}

  static bool can_begin_at(const Panel16Shape& /*shape*/, i64 /*tiles*/) { return true; }

  static i64 offset(const Panel16Shape& /*shape*/, i64 tile) { return tile * kTileBytes; }

  void begin_segment(const std::byte* lines, i64 tile, const Ahead& ahead) {
    lines_ = lines;
    left_ = panel_bytes_ - tile * kTileBytes;
    ahead_ = ahead;
  }

  [[nodiscard]] bool end_segment() const { return false; }

  [[gnu::always_inline]] const std::byte* next(std::byte* room) {
    if (left_ < kTileBytes) {
      return rest(room);
    }
    const std::byte* tile = lines_;
    for (i64 at = 0; at < kTileBytes; at += kPanel16LineBytes) {
      prefetch(tile + at, ahead_);
    }
    lines_ += kTileBytes;
    left_ -= kTileBytes;
    return tile;
  }

 private:
  // The last tile of a panel, behind which nothing is read.
  [[nodiscard]] const std::byte* rest(std::byte* room) const {
    std::memset(room, 0, kTileBytes);
    std::memcpy(room, lines_, static_cast<std::size_t>(left_));
    return room;
  }

  i64 panel_bytes_;
  const std::byte* lines_ = nullptr;
  i64 left_ = 0;  // of this panel
  Ahead ahead_;
};

// By 5-bit index: a permute of 16-bit lanes reads five bits, and the fifth belongs to the next
// code, so that a table of codes stands twice.
struct alignas(64) Table {
  std::uint16_t values[32];
};

constexpr Table code_table(const std::uint16_t (&magnitudes)[8]) {
  Table table{};
  for (unsigned i = 0; i < 32; ++i) {
    // Code -0 is +0: no sum, which starts from +0, has another bit for it.
    const bool negative = (i & 8U) != 0U && i % 8U != 0U;
    table.values[i] = static_cast<std::uint16_t>(magnitudes[i % 8U] | (negative ? 0x8000U : 0U));
  }
  return table;
}

// Weights are decoded by a subtraction: the table holds them at a scale above all that count, and
// the distance from there, in units of the exponent's last place, is taken off. Saturation keeps
// zero zero, and under a negative code the sign bit stays since the distance is less than what is
// beneath it.

// mxfp4: the table is that of 2^125, E8M0 byte 252; E2M1 itself is in bf16 from 0x3F00 on.
struct Mxfp4Decode {
  static constexpr Panel16Element kElement = Panel16Element::kMxfp4;
  static constexpr Table kTable =
      code_table({0x0000, 0x7D80, 0x7E00, 0x7E40, 0x7E80, 0x7EC0, 0x7F00, 0x7F40});

  struct Scale {
    __m512i distance;
  };

  static Scale scale(__m512i bytes) {
    return {_mm512_sub_epi16(_mm512_set1_epi16(kMostScale << 7), _mm512_slli_epi16(bytes, 7))};
  }

  static __m512i weights(__m512i values, const Scale& scale) {
    return _mm512_subs_epu16(values, scale.distance);
  }

  // Bytes above the most wrap around to distances beyond that of the least.
  static constexpr int kMostScale = 252;
  static constexpr int kMostDistance = (kMostScale - kLeastFoldedScale) << 7;
};

// nvfp4: a weight is scale * 2^k or scale * 1.5 * 2^k, and the bits of a bf16 scale * 1.5 are
// those of the scale and a difference that its mantissa alone decides. The table has ones in the
// mantissa of the codes with 1.5, of which the row's difference is kept.
struct Nvfp4Decode {
  static constexpr Panel16Element kElement = Panel16Element::kNvfp4;
  // The table's 1.0 has a stored E5M3 scale of 248, which is 2^21.
  static constexpr Table kTable = code_table({0x0000,
                                              147 << 7,
                                              148 << 7,
                                              (148 << 7) + 0x7F,
                                              149 << 7,
                                              (149 << 7) + 0x7F,
                                              150 << 7,
                                              (150 << 7) + 0x7F});

  struct Scale {
    __m512i distance;
    __m512i kept;
  };

  static Scale scale(__m512i bytes) {
    const __mmask32 nonzero = _mm512_test_epi16_mask(bytes, bytes);
    return {_mm512_sub_epi16(_mm512_set1_epi16(248 << 4), _mm512_slli_epi16(bytes, 4)),
            _mm512_maskz_permutexvar_epi16(nonzero, bytes, _mm512_load_si512(&kKept))};
  }

  static __m512i weights(__m512i values, const Scale& scale) {
    return _mm512_subs_epu16(_mm512_and_si512(values, scale.kept), scale.distance);
  }

  static constexpr int kMostDistance = 0;

 private:
  static constexpr Table kept_table() {
    Table table{};
    for (int i = 0; i < 32; ++i) {
      const int eighths = i % 8;
      const int more = eighths < 3 ? 64 + 8 * eighths : 96 - 4 * eighths;
      table.values[i] = static_cast<std::uint16_t>(0xFF80 + more);
    }
    return table;
  }

  static const Table kKept;
};

constexpr Table Nvfp4Decode::kKept = Nvfp4Decode::kept_table();

// Row r's byte to the low bytes of both halves of lane r; zero elsewhere.
__m512i in_both_halves(const std::byte* bytes) {
  struct alignas(64) Places {
    std::uint8_t values[64];
  };

  static constexpr Places kPlaces = [] {
    Places out{};
    for (unsigned i = 0; i < 64; ++i) {
      out.values[i] = static_cast<std::uint8_t>(i % 2U != 0U ? 0x80U : i / 4U);
    }
    return out;
  }();
  const __m128i rows = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(rows), _mm512_load_si512(&kPlaces));
}

// The tiles of a segment of codes, decoded from four lines each. kWhole: every tile is whole and
// begins with a scale group.
template <typename Decode, bool kWhole>
class CodeTiles {
 public:
  explicit CodeTiles(const Panel16Shape& shape)
      : first_(device::panel16_first_step(shape)),
        end_(first_ + device::panel16_num_steps(shape)),
        table_(_mm512_load_si512(&Decode::kTable)) {}

  /// Whether a segment may begin every `tiles` tiles: at a block's scales and nowhere else.
  static bool can_begin_at(const Panel16Shape& shape, i64 tiles) {
    return device::panel16_first_step(shape) % kBlockSteps == 0 &&
           tiles * kTileSteps % kBlockSteps == 0;
  }

  static i64 offset(const Panel16Shape& shape, i64 tile) {
    const i64 step = device::panel16_first_step(shape) + tile * kTileSteps;
    return tile == 0 ? 0 : device::panel16_code_line(shape, step) - kPanel16LineBytes;
  }

  void begin_segment(const std::byte* lines, i64 tile, const Ahead& ahead) {
    line_ = lines;
    step_ = first_ + tile * kTileSteps;
    ahead_ = ahead;
    most_ = _mm512_setzero_si512();
    if (step_ % kBlockSteps != 0) {
      begin_block();
      scales_ += step_ % kBlockSteps / kGroupSteps * device::kPanel16Rows;
      read_scale();
    }
  }

  /// Whether the segment has weights that bf16 does not hold with room below.
  [[nodiscard]] bool end_segment() const {
    return Decode::kMostDistance != 0 &&
           _mm512_cmpgt_epu16_mask(most_, _mm512_set1_epi16(Decode::kMostDistance)) != 0;
  }

  [[gnu::always_inline]] const std::byte* next(std::byte* room) {
    auto* rows = reinterpret_cast<__m512i*>(room);
    for (i64 i = 0; i < kTileSteps; ++i, ++step_) {
      if (!kWhole && step_ >= end_) {
        for (i64 pair = 0; pair < 4; ++pair) {
          _mm512_store_si512(rows + 4 * i + pair, _mm512_setzero_si512());
        }
        continue;
      }
      if ((!kWhole || i % kBlockSteps == 0) && step_ % kBlockSteps == 0) {
        begin_block();
      }
      if (kWhole ? i % kGroupSteps == 0 : step_ % kGroupSteps == 0) {
        read_scale();
      }
      store_step(rows + 4 * i);
    }
    return room;
  }

 private:
  static constexpr i64 kGroupSteps =
      device::panel16_own_group_cols(Decode::kElement) / kPanel16StepCols;
  static constexpr i64 kBlockSteps = device::kPanel16BlockGroups * kGroupSteps;

  [[gnu::always_inline]] void begin_block() {
    scales_ = line_;
    prefetch(line_, ahead_);
    line_ += kPanel16LineBytes;
  }

  [[gnu::always_inline]] void read_scale() {
    scale_ = Decode::scale(in_both_halves(scales_));
    scales_ += device::kPanel16Rows;
    if constexpr (Decode::kMostDistance != 0) {
      most_ = _mm512_max_epu16(most_, scale_.distance);
    }
  }

  // Port 0 has the saturating subtractions, half of each permute and bit shifts; shifts by a byte
  // go to port 5.
  [[gnu::always_inline]] void store_step(__m512i* rows) {
    prefetch(line_, ahead_);
    const __m512i words = _mm512_loadu_si512(line_);
    const __m512i second = _mm512_srli_epi16(words, 4);
    line_ += kPanel16LineBytes;
    store_pair(words, rows);
    store_pair(second, rows + 1);
    store_pair(_mm512_bsrli_epi128(words, 1), rows + 2);
    store_pair(_mm512_bsrli_epi128(second, 1), rows + 3);
  }

  [[gnu::always_inline]] void store_pair(__m512i codes, __m512i* row) const {
    _mm512_store_si512(row, Decode::weights(_mm512_permutexvar_epi16(codes, table_), scale_));
  }

  i64 first_;
  i64 end_;
  __m512i table_;
  const std::byte* line_ = nullptr;
  const std::byte* scales_ = nullptr;
  Ahead ahead_;
  i64 step_ = 0;
  typename Decode::Scale scale_ = {};
  __m512i most_ = _mm512_setzero_si512();
};

// Calls function with the panel of a pass as a constant: which tiles its sums are.
template <int kPanels, typename Function>
[[gnu::always_inline]] inline void with_panel(i64 panel, Function function) {
  switch (panel) {
    case 0:
      return function(std::integral_constant<int, 0>{});
    case 1:
      return function(std::integral_constant<int, 1 % kPanels>{});
    case 2:
      return function(std::integral_constant<int, 2 % kPanels>{});
    default:
      return function(std::integral_constant<int, 3 % kPanels>{});
  }
}

// How a call's panels are cut into segments of tiles.
template <typename Tiles>
PanelCut cut_panels(const DotCall& call, i64 panels_of_pass) {
  const Panel16Shape& shape = *call.shape;
  const i64 num_tiles = device::ceil_div(device::panel16_num_steps(shape), kTileSteps);
  const bool wide = num_tiles >= 2 * kSegmentTiles;
  const i64 wanted = wide ? kSegmentTiles : kShortSegmentTiles;
  const i64 segment_tiles = Tiles::can_begin_at(shape, wanted) ? wanted : num_tiles;
  return {call.num_panels,
          wide ? panels_of_pass : 1,
          device::panel16_panel_bytes(shape),
          num_tiles,
          segment_tiles,
          Tiles::offset(shape, segment_tiles)};
}

// Returns a bit for each panel whose sums are to be computed otherwise. A function of its own for
// every number of tiles, which scripts/check_instructions looks at.
//
// A load of a tile waits for stores still on their way to L1, and not only for those to its own
// addresses (README, 8). So weights are decoded kTilesAhead in front of their products, and loaded
// in front of the stores of the tile that is decoded next.
template <typename Tiles, int kTiles>
[[gnu::noinline]] u64 dot_tiles(const DotCall& call, const TokenTiles& tokens) {
  constexpr int kPanels = PassSums<kTiles>::kPanels;
  constexpr i64 kTilesAhead = 3;
  constexpr std::size_t kRingTiles = kTilesAhead + 1;
  alignas(64) std::byte ring[kRingTiles][kTileBytes];
  const std::byte* decoded[kRingTiles] = {};
  Job jobs[kRingTiles];
  const auto slot = [](i64 tile) { return static_cast<std::size_t>(tile) % kRingTiles; };
  const PanelCut cut = cut_panels<Tiles>(call, kPanels);
  PassSums<kTiles> sums(call, tokens);
  Tiles weights(*call.shape);
  u64 unfolded = 0;
  i64 tile = 0;
  const auto multiply = [&](const Job& job) {
    with_panel<kPanels>(job.panel_of_pass, [&](auto panel) { sums.template add<panel>(job.x); });
    if (job.panels_to_store != 0) {
      sums.store(job.panels_to_store);
    }
  };
  AheadOfSegments ahead(call, cut);
  for (SegmentWalk walk(cut); !walk.done(); walk.next(), ahead.next()) {
    weights.begin_segment(call.panels + walk.offset(), walk.first_unit(), ahead.from(walk));
    const std::byte* x = call.operand + walk.first_unit() * kTileRowBytes;
    const i64 first = tile;
    const i64 end = first + walk.units();
    // Beside the products of the segment before.
    for (const i64 lead = std::min(end, first + kTilesAhead); tile < lead; ++tile) {
      const Job& job = jobs[slot(tile - kTilesAhead)];
      if (tile >= kTilesAhead) {
        sums.load(job.weights, job.x);
      }
      decoded[slot(tile)] = weights.next(ring[slot(tile)]);
      if (tile >= kTilesAhead) {
        multiply(job);
      }
    }
    with_panel<kPanels>(
        walk.panel_of_pass(), [&](auto panel) __attribute__((always_inline)) {
          for (const std::byte* at = x; tile < end; ++tile, at += kTileRowBytes) {
            sums.load(decoded[slot(tile - kTilesAhead)], at);
            decoded[slot(tile)] = weights.next(ring[slot(tile)]);
            sums.template add<panel>(at);
          }
        });
    for (i64 left = std::max(first, end - kTilesAhead); left < end; ++left) {
      jobs[slot(left)] = {
          decoded[slot(left)], x + (left - first) * kTileRowBytes, walk.panel_of_pass(), 0};
    }
    if (walk.ends_pass()) {
      jobs[slot(end - 1)].panels_to_store = walk.panel_of_pass() + 1;
    }
    unfolded |= static_cast<u64>(weights.end_segment()) << walk.panel();
  }
  for (i64 left = std::max<i64>(0, tile - kTilesAhead); left < tile; ++left) {
    const Job& job = jobs[slot(left)];
    sums.load(job.weights, job.x);
    multiply(job);
  }
  return unfolded;
}

template <typename Tiles>
u64 dot_panels(const DotCall& call, const TokenTiles& tokens) {
  switch (tokens.count) {
    case 1:
      return dot_tiles<Tiles, 1>(call, tokens);
    case 2:
      return dot_tiles<Tiles, 2>(call, tokens);
    case 3:
      return dot_tiles<Tiles, 3>(call, tokens);
    default:
      return dot_tiles<Tiles, 4>(call, tokens);
  }
}

// One panel, group by group, one token after the other.
void dot_unfolded(const DotCall& call, i64 panel) {
  for (i64 token = 0; token < call.num_tokens; ++token) {
    DotCall alone = call;
    alone.panels = call.panels + panel * device::panel16_panel_bytes(*call.shape);
    alone.num_panels = 1;
    alone.operand = call.operand + token * call.operand_row_bytes;
    alone.num_tokens = 1;
    alone.sums = call.sums + (panel * call.num_tokens + token) * kPanelRows;
    kAvx512Body.dot(alone);
  }
}

template <typename Tiles>
void dot_folded(const DotCall& call) {
  const TokenTiles tokens(call.num_tokens);
  configure(call.num_tokens, tokens);
  const u64 unfolded = dot_panels<Tiles>(call, tokens);
  for (i64 panel = 0; unfolded != 0 && panel < call.num_panels; ++panel) {
    if ((unfolded >> panel & 1U) != 0U) {
      dot_unfolded(call, panel);
    }
  }
}

template <typename Decode>
void dot_codes(const DotCall& call) {
  if (device::panel16_group_cols(*call.shape) != device::panel16_own_group_cols(Decode::kElement)) {
    for (i64 panel = 0; panel < call.num_panels; ++panel) {
      dot_unfolded(call, panel);
    }
    return;
  }
  const i64 first = device::panel16_first_step(*call.shape);
  const i64 steps = device::panel16_num_steps(*call.shape);
  if (first % kTileSteps == 0 && steps % kTileSteps == 0) {
    return dot_folded<CodeTiles<Decode, true>>(call);
  }
  return dot_folded<CodeTiles<Decode, false>>(call);
}

void dot_amx(const DotCall& call) {
  switch (call.shape->element) {
    case Panel16Element::kBf16:
      return dot_folded<Bf16Tiles>(call);
    case Panel16Element::kNvfp4:
      return dot_codes<Nvfp4Decode>(call);
    case Panel16Element::kMxfp4:
      return dot_codes<Mxfp4Decode>(call);
    default:
      return;  // kAmxBody.wide_scales serves these
  }
}

constexpr Body make_amx_body(const Body* codes) {
  return {Isa::kAmx,
          2,
          kMostTokens,
          load_operand_row,
          nullptr,
          nullptr,
          dot_amx,
          activate,
          scale,
          weighted_sum,
          round_to_bf16,
          finish,
          &kAvx512DigitBody,
          codes,
          48};
}

}  // namespace

constinit const Body kAmxBody = make_amx_body(nullptr);
// One and two tokens an expert: decoding to bf16 costs more than digits' products.
constinit const Body kAmxDirectBody = make_amx_body(&kAvx512DigitBody);

}  // namespace moekit::panels
