// SPDX-License-Identifier: Apache-2.0
#include "runtime/verify_suite.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/border.h"
#include "base/text.h"
#include "runtime/verify_quirks.h"

namespace moekit::verify {
namespace {

// Tensor-parallel shards and whole widths that published tuned configurations name, and the widths
// whose tails broke kernels before: 8, 112, 144, 312.
constexpr std::int64_t kIntermediates[] = {8,    64,   96,   112,  128,  144,  160,  176,  192,
                                           232,  256,  312,  320,  336,  352,  384,  464,  512,
                                           640,  672,  704,  768,  800,  896,  928,  1024, 1280,
                                           1344, 1408, 1536, 1792, 1856, 2048, 2688, 2880, 3072};
constexpr std::int64_t kExperts[] = {1,   8,   16,  20,  32,  33,  40,  41,  48,
                                     60,  62,  64,  72,  128, 129, 160, 161, 256,
                                     257, 272, 288, 384, 385, 512, 513, 576, 896};
constexpr std::int64_t kTopKs[] = {1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 16, 22, 32};
constexpr std::int64_t kHiddens[] = {8, 24, 64, 72, 136, 256, 520, 1032};
constexpr std::int64_t kTokens[] = {0, 1, 2, 7, 8, 9, 33, 257};

constexpr std::int64_t kQuickIntermediates[] = {8, 64, 112, 176, 232, 352, 512};
constexpr std::int64_t kQuickExperts[] = {1, 8, 33, 64, 160};
constexpr std::int64_t kQuickTopKs[] = {1, 2, 6, 8, 22};
constexpr std::int64_t kQuickHiddens[] = {8, 64, 136, 256};

// Elements of one projection over all experts, and products of one: keep a case near 0.2 s.
struct Budget {
  std::int64_t weights = 0;
  std::int64_t products = 0;
};

struct Extents {
  std::span<const std::int64_t> intermediates;
  std::span<const std::int64_t> experts;
  std::span<const std::int64_t> top_ks;
  std::span<const std::int64_t> hiddens;
  std::span<const std::int64_t> tokens;
  Budget budget;
};

const Extents& extents_of(VerifySuite suite) {
  static const Extents full{kIntermediates,
                            kExperts,
                            kTopKs,
                            kHiddens,
                            kTokens,
                            {std::int64_t{4} << 20, std::int64_t{96} << 20}};
  static const Extents quick{kQuickIntermediates,
                             kQuickExperts,
                             kQuickTopKs,
                             kQuickHiddens,
                             kTokens,
                             {std::int64_t{1} << 20, std::int64_t{32} << 20}};
  return suite == VerifySuite::kFull ? full : quick;
}

struct ActivationLevel {
  ActivationKind kind;
  std::optional<float> limit{};
  std::optional<float> alpha{};
  std::optional<float> beta{};
  std::optional<float> gate_scale{};
  std::optional<float> up_scale{};
};

const ActivationLevel kActivations[] = {
    {ActivationKind::kSilu},
    {ActivationKind::kSilu, 1.25F},
    {ActivationKind::kSwigluOai},
    {ActivationKind::kSwigluOai, 2.0F, 1.125F, 0.5F},
    {ActivationKind::kSitu},
    {ActivationKind::kSitu, {}, {}, {}, 2.0F, 5.0F},
    {ActivationKind::kGeluTanh},
    {ActivationKind::kRelu2},
};

struct BiasLevel {
  bool gate_up;
  bool down;
  BiasQuirk quirk;
};

constexpr BiasLevel kBiasLevels[] = {
    {false, false, BiasQuirk::kBf16},
    {true, false, BiasQuirk::kBf16},
    {false, true, BiasQuirk::kBf16},
    {true, true, BiasQuirk::kBf16},
    {true, true, BiasQuirk::kF32},
    {true, true, BiasQuirk::kF16Strided},
};

struct ScalingLevel {
  float scaling;
  ScalingPlace place;
};

constexpr ScalingLevel kScalings[] = {
    {1.0F, ScalingPlace::kWeights}, {2.5F, ScalingPlace::kWeights}, {2.5F, ScalingPlace::kSum}};

constexpr DType kIos[] = {DType::kBf16, DType::kF16, DType::kF32};

// What the plan is asked for beside the problem.
enum class PlanLevel : int {
  kAsIs,
  kLargerCapacity,
  kChunked,
  kDirect,
  kGrouped,
  kBatchInvariant,
  kCount
};

// Pinned, the direct family serves decode sizes.
constexpr std::int64_t kMaxDirectTokens = 9;

constexpr WeightQuirk kWeightLevels[] = {WeightQuirk::kEncoded,
                                         WeightQuirk::kRawCodes,
                                         WeightQuirk::kSubnormalScales,
                                         WeightQuirk::kZeroScales,
                                         WeightQuirk::kWideScales,
                                         WeightQuirk::kUnequalGlobals,
                                         WeightQuirk::kDormantExpert,
                                         WeightQuirk::kTransposed};

constexpr InputQuirk kInputLevels[] = {InputQuirk::kNormal,
                                       InputQuirk::kZero,
                                       InputQuirk::kNegativeZero,
                                       InputQuirk::kLarge,
                                       InputQuirk::kSubnormal,
                                       InputQuirk::kNanToken,
                                       InputQuirk::kInfToken,
                                       InputQuirk::kOneHot};

// Where routes come from: ids of the call, or logits that the plan's first step reads.
struct RouteLevel {
  RouteQuirk routes = RouteQuirk::kUniform;
  IdQuirk ids = IdQuirk::kInt32;
  std::optional<Scoring> scoring{};
  bool grouped = false;
  bool bias = false;
  bool renormalize = false;
  float scale = 1.0F;
  bool expert_scale = false;
  bool hash = false;
};

const RouteLevel kRouteLevels[] = {
    {},
    {RouteQuirk::kAllToOneExpert},
    {RouteQuirk::kDuplicateIds},
    {RouteQuirk::kInactiveIds},
    {RouteQuirk::kOutOfRangeIds},
    {RouteQuirk::kInactiveTokens},
    {RouteQuirk::kAllInactive},
    {RouteQuirk::kZeroWeights},
    {RouteQuirk::kUniform, IdQuirk::kInt64},
    {RouteQuirk::kInactiveIds, IdQuirk::kInt64Wide},
    {RouteQuirk::kUniform, IdQuirk::kInt32, Scoring::kSoftmax, false, false, true, 1.0F},
    {RouteQuirk::kUniform, IdQuirk::kInt32, Scoring::kSigmoid, true, true, true, 2.5F},
    {RouteQuirk::kUniform, IdQuirk::kInt32, Scoring::kSoftmaxSelected},
    {RouteQuirk::kTiedLogits, IdQuirk::kInt32, Scoring::kSoftmax},
    {RouteQuirk::kMaskedLogits, IdQuirk::kInt32, Scoring::kSigmoid, false, true, true, 1.0F},
    {RouteQuirk::kMaskedLogits, IdQuirk::kInt32, Scoring::kSoftmaxSelected},
    {RouteQuirk::kUniform, IdQuirk::kInt32, Scoring::kSqrtSoftplus, false, true, true, 1.5F},
    {RouteQuirk::kMaskedLogits,
     IdQuirk::kInt32,
     Scoring::kSqrtSoftplus,
     false,
     false,
     true,
     1.5F,
     false,
     true},
    {RouteQuirk::kUniform, IdQuirk::kInt32, Scoring::kSoftmax, false, false, true, 1.0F, true},
    {RouteQuirk::kUniform, IdQuirk::kInt32, Scoring::kNone},
};

int level_of(const LevelRow& row, Factor factor) {
  return row[static_cast<std::size_t>(factor)];
}

template <typename Table>
const auto& chosen(const Table& table, const LevelRow& row, Factor factor) {
  return table[static_cast<std::size_t>(level_of(row, factor))];
}

std::int64_t extent_or_least(std::span<const std::int64_t> values,
                             const LevelRow& row,
                             Factor factor) {
  const int level = level_of(row, factor);
  return level == kUnset ? *std::min_element(values.begin(), values.end())
                         : values[static_cast<std::size_t>(level)];
}

bool fits_recipe(const LevelRow& row) {
  if (level_of(row, Factor::kWeights) == kUnset || level_of(row, Factor::kRecipe) == kUnset) {
    return true;
  }
  Quirks quirks;
  quirks.weights = chosen(kWeightLevels, row, Factor::kWeights);
  Problem problem;
  problem.recipe = chosen(kRecipes, row, Factor::kRecipe).recipe;
  return check_quirks(quirks, problem).ok();
}

// Every rule is monotone in the extents, so a partial row can be completed when it holds with each
// open extent at its least.
bool fits_budget(const Extents& extents, const LevelRow& row) {
  const std::int64_t top_k = extent_or_least(extents.top_ks, row, Factor::kTopK);
  std::int64_t experts = extent_or_least(extents.experts, row, Factor::kExperts);
  if (level_of(row, Factor::kExperts) == kUnset) {
    experts = *std::lower_bound(extents.experts.begin(), extents.experts.end(), top_k);
  }
  const std::int64_t tokens = extent_or_least(extents.tokens, row, Factor::kTokens);
  const std::int64_t area = extent_or_least(extents.intermediates, row, Factor::kIntermediate) *
                            extent_or_least(extents.hiddens, row, Factor::kHidden);
  const int plan = level_of(row, Factor::kPlan);
  const bool direct = plan == static_cast<int>(PlanLevel::kDirect);
  return top_k <= experts && experts * area <= extents.budget.weights &&
         tokens * top_k * area <= extents.budget.products &&
         (!direct || tokens <= kMaxDirectTokens);
}

void set_activation(const LevelRow& row, Problem& problem) {
  const ActivationLevel& level = chosen(kActivations, row, Factor::kActivation);
  problem.activation.kind = level.kind;
  problem.activation.limit = level.limit;
  problem.activation.alpha = level.alpha;
  problem.activation.beta = level.beta;
  problem.activation.gate_scale = level.gate_scale;
  problem.activation.up_scale = level.up_scale;
}

// How weights lie on the grid of their scales takes turns from case to case: group sizes of formats
// that have several, and one case in four is a shard that begins inside a group and a block.
void set_grid(std::uint64_t index, Problem& problem) {
  constexpr std::int64_t kGroupSizes[] = {0, 32, 64};
  const FormatInfo& format = format_info(recipe_info(problem.recipe).weights);
  if (format.element == DType::kI4) {
    problem.weight_group_size = kGroupSizes[index % 3];
  }
  if (format.scale.has_value() && index % 4 == 3) {
    const std::int64_t group =
        problem.weight_group_size != 0 ? problem.weight_group_size : format.group_size;
    const auto steps = static_cast<std::uint64_t>(group / kExtentMultiple);
    problem.down_group_offset = static_cast<std::int64_t>(index / 4 % steps) * kExtentMultiple;
    problem.gate_up_row_offset =
        format.group_rows == 1 ? 0 : static_cast<std::int64_t>(index % 128);
  }
}

void set_routes(const LevelRow& row, Problem& problem, Quirks& quirks) {
  const RouteLevel& level = chosen(kRouteLevels, row, Factor::kRoutes);
  quirks.routes = level.routes;
  quirks.ids = level.ids;
  if (!level.scoring.has_value()) {
    return;
  }
  Routing routing;
  routing.scoring = *level.scoring;
  routing.num_experts = num_router_experts(problem);
  routing.top_k = problem.top_k;
  routing.correction_bias = level.bias;
  routing.renormalize = level.renormalize;
  routing.scale = level.scale;
  routing.expert_scale = level.expert_scale;
  routing.hash_table = level.hash;
  // Four groups of which two stay, where the experts divide and enough remain.
  if (level.grouped && routing.num_experts % 4 == 0 && routing.num_experts / 2 >= routing.top_k) {
    routing.num_groups = 4;
    routing.top_groups = 2;
  }
  problem.routing = routing;
}

void set_plan(const LevelRow& row, VerifyCase& verify_case, Quirks& quirks) {
  verify_case.problem.num_tokens = verify_case.num_tokens;
  switch (static_cast<PlanLevel>(level_of(row, Factor::kPlan))) {
    case PlanLevel::kLargerCapacity:
      verify_case.problem.num_tokens += 40;
      break;
    case PlanLevel::kChunked:
      quirks.plan = PlanQuirk::kChunked;
      break;
    case PlanLevel::kDirect:
      verify_case.overrides.family = ExecutionFamily::kDirect;
      break;
    case PlanLevel::kGrouped:
      verify_case.overrides.family = ExecutionFamily::kGrouped;
      break;
    case PlanLevel::kBatchInvariant:
      verify_case.problem.batch_invariant = true;
      break;
    case PlanLevel::kAsIs:
    case PlanLevel::kCount:
      break;
  }
}

}  // namespace

CoveringProblem suite_problem(VerifySuite suite) {
  const Extents& extents = extents_of(suite);
  CoveringProblem problem;
  problem.num_levels.resize(static_cast<std::size_t>(Factor::kCount));
  const auto set = [&problem](Factor factor, std::size_t levels) {
    problem.num_levels[static_cast<std::size_t>(factor)] = static_cast<int>(levels);
  };
  set(Factor::kRecipe, kRecipes.size());
  set(Factor::kActivation, std::size(kActivations));
  set(Factor::kRowOrder, 3);
  set(Factor::kBias, std::size(kBiasLevels));
  set(Factor::kIo, std::size(kIos));
  set(Factor::kShared, 3);
  set(Factor::kScaling, std::size(kScalings));
  set(Factor::kWeightOnInput, 2);
  set(Factor::kMap, 2);
  set(Factor::kOrder, 2);
  set(Factor::kPlan, static_cast<std::size_t>(PlanLevel::kCount));
  set(Factor::kWeights, std::size(kWeightLevels));
  set(Factor::kRoutes, std::size(kRouteLevels));
  set(Factor::kInputs, std::size(kInputLevels));
  set(Factor::kViews, 2);
  set(Factor::kTokens, extents.tokens.size());
  set(Factor::kTopK, extents.top_ks.size());
  set(Factor::kExperts, extents.experts.size());
  set(Factor::kIntermediate, extents.intermediates.size());
  set(Factor::kHidden, extents.hiddens.size());
  problem.feasible = [&extents](const LevelRow& row) {
    return fits_recipe(row) && fits_budget(extents, row);
  };
  return problem;
}

VerifyCase suite_case(VerifySuite suite, const LevelRow& row, std::uint64_t index) {
  const Extents& extents = extents_of(suite);
  VerifyCase verify_case;
  verify_case.seed = index + 1;
  verify_case.num_tokens = chosen(extents.tokens, row, Factor::kTokens);
  Problem& problem = verify_case.problem;
  problem.recipe = chosen(kRecipes, row, Factor::kRecipe).recipe;
  set_activation(row, problem);
  problem.row_order = static_cast<RowOrder>(level_of(row, Factor::kRowOrder));
  const BiasLevel& bias = chosen(kBiasLevels, row, Factor::kBias);
  problem.gate_up_bias = bias.gate_up;
  problem.down_bias = bias.down;
  problem.io_dtype = chosen(kIos, row, Factor::kIo);
  problem.shared = static_cast<SharedInput>(level_of(row, Factor::kShared));
  problem.routed_scaling = chosen(kScalings, row, Factor::kScaling).scaling;
  problem.routed_scaling_place = chosen(kScalings, row, Factor::kScaling).place;
  problem.router_weight_on_input = level_of(row, Factor::kWeightOnInput) == 1;
  problem.combine_order = static_cast<CombineOrder>(level_of(row, Factor::kOrder));
  problem.top_k = chosen(extents.top_ks, row, Factor::kTopK);
  problem.num_experts = chosen(extents.experts, row, Factor::kExperts);
  problem.intermediate_size = chosen(extents.intermediates, row, Factor::kIntermediate);
  problem.hidden_size = chosen(extents.hiddens, row, Factor::kHidden);
  if (level_of(row, Factor::kMap) == 1) {
    problem.expert_map = true;
    problem.router_experts =
        std::min(kMaxExperts, problem.num_experts + problem.num_experts / 3 + 1);
  }
  set_grid(index, problem);
  Quirks quirks;
  quirks.weights = chosen(kWeightLevels, row, Factor::kWeights);
  quirks.biases = bias.quirk;
  quirks.inputs = chosen(kInputLevels, row, Factor::kInputs);
  quirks.views = static_cast<ViewQuirk>(level_of(row, Factor::kViews));
  set_routes(row, problem, quirks);
  set_plan(row, verify_case, quirks);
  verify_case.quirk = quirks_name(quirks);
  return verify_case;
}

std::vector<VerifyCase> model_cases() {
  // Whole widths of published models; the experts are as few as top_k allows, because each holds
  // 8 to 25 million weights.
  constexpr std::string_view kLines[] = {
      // gpt-oss-20b
      "recipe=w4a16_mxfp4 h=2880 i=2880 e=4 k=4 m=2 activation=swiglu_oai row_order=interleaved "
      "bias=both routing=softmax_selected",
      // Qwen3-30B-A3B
      "recipe=w4a16_nvfp4 h=2048 i=768 e=12 k=8 m=9 activation=silu routing=softmax,renormalize",
      // DeepSeek-V3, four of its groups
      "recipe=w4a16_nvfp4 h=7168 i=2048 e=2 k=2 m=1 activation=silu scaling=2.5@weights",
      // Nemotron-3-Nano
      "recipe=w4a16_nvfp4 h=2688 i=1856 e=8 k=6 m=33 activation=relu2 scaling=2.5@sum",
      // Kimi-K3: latent width, SiTU
      "recipe=w4a16_mxfp4 h=3584 i=3072 e=4 k=4 m=2 activation=situ",
      // gemma-4-26B-A4B at TP2
      "recipe=w16a16 h=2816 i=352 e=16 k=8 m=8 activation=gelu_tanh",
      // Llama-4: weight on input
      "recipe=w16a16 h=5120 i=1024 e=2 k=1 m=7 activation=silu weight_on_input=1 shared=io "
      "routing=sigmoid",
      // DeepSeek-V4-Flash, a layer that selects by token id
      "recipe=w4a8_mxfp4 h=4096 i=2048 e=6 k=6 m=2 activation=silu limit=10 "
      "routing=sqrt_softplus,renormalize,scale:1.5,hash",
      // gemma-4-26B-A4B at TP4
      "recipe=w4a16_nvfp4 h=2816 i=176 e=16 k=8 m=8 activation=gelu_tanh "
      "routing=softmax,renormalize,expert_scale",
      // the largest namespace and the most slots
      "recipe=w4a16_nvfp4 h=64 i=64 e=1024 k=32 m=33 activation=silu "
      "routing=sigmoid,groups:8:4,bias",
      "recipe=w4a16_mxfp4 h=64 i=64 e=32 k=32 m=9 activation=silu",
  };
  std::vector<VerifyCase> cases;
  for (const std::string_view line : kLines) {
    Result<VerifyCase> verify_case = parse_verify_case(line);
    if (verify_case.has_value()) {
      cases.push_back(std::move(*verify_case));
    }
  }
  return cases;
}

}  // namespace moekit::verify

namespace moekit {

Result<std::vector<VerifyCase>> verify_suite(VerifySuite suite) noexcept {
  return base::at_border([&]() -> Result<std::vector<VerifyCase>> {
    std::vector<VerifyCase> cases;
    for (const verify::LevelRow& row : verify::covering_array(verify::suite_problem(suite))) {
      cases.push_back(verify::suite_case(suite, row, cases.size()));
    }
    if (suite == VerifySuite::kFull) {
      for (VerifyCase& verify_case : verify::model_cases()) {
        cases.push_back(std::move(verify_case));
      }
    }
    return cases;
  });
}

}  // namespace moekit
