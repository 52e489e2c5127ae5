// SPDX-License-Identifier: Apache-2.0
#include "cli/subject.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/presets.h"

namespace moekit::cli {
namespace {

template <typename T>
std::optional<T> parse_integer(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

/// Names of the enumerators 0 … count-1, for messages.
template <typename Enum, typename Name>
std::string names_of(int count, Name name) {
  std::vector<std::string_view> names;
  for (int i = 0; i < count; ++i) {
    names.push_back(name(static_cast<Enum>(i)));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string recipe_names() {
  std::vector<std::string_view> names;
  for (const RecipeInfo& row : kRecipes) {
    names.push_back(row.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Reads `word` with `from_name` into `target`, or explains which words exist.
template <typename Target, typename FromName>
Status apply_word(const std::optional<std::string>& word,
                  std::string_view option,
                  FromName from_name,
                  const std::string& known,
                  Target& target) {
  if (!word) {
    return {};
  }
  const auto value = from_name(*word);
  if (!value) {
    return invalid_argument(fmt::format("{} {}: unknown, one of {}", option, *word, known));
  }
  target = *value;
  return {};
}

std::optional<DType> io_dtype_from_name(std::string_view name) {
  const std::optional<DType> dtype = dtype_from_name(name);
  return dtype == DType::kBf16 || dtype == DType::kF16 || dtype == DType::kF32 ? dtype
                                                                               : std::nullopt;
}

Status apply_words(const LayerOptions& options, Problem& problem) {
  MOEKIT_RETURN_IF_ERROR(
      apply_word(options.recipe, "--recipe", recipe_from_name, recipe_names(), problem.recipe));
  MOEKIT_RETURN_IF_ERROR(apply_word(options.activation,
                                    "--activation",
                                    activation_from_name,
                                    names_of<ActivationKind>(5, activation_name),
                                    problem.activation.kind));
  MOEKIT_RETURN_IF_ERROR(apply_word(options.row_order,
                                    "--row-order",
                                    row_order_from_name,
                                    names_of<RowOrder>(3, row_order_name),
                                    problem.row_order));
  return apply_word(
      options.io_dtype, "--io-dtype", io_dtype_from_name, "bf16, f16, f32", problem.io_dtype);
}

template <typename T>
void apply_value(const std::optional<T>& value, std::optional<T>& target) {
  if (value) {
    target = value;
  }
}

Status apply_semantics(const LayerOptions& options, Problem& problem) {
  if (options.activation) {
    problem.activation = Activation{};  // parameters of another kind would be errors
  }
  MOEKIT_RETURN_IF_ERROR(apply_words(options, problem));
  if (options.row_order && problem.row_order != RowOrder::kGateUp &&
      !activation_is_gated(problem.activation.kind)) {
    return invalid_argument(fmt::format("--row-order {}: {} has no gate rows to order",
                                        *options.row_order,
                                        activation_name(problem.activation.kind)));
  }
  apply_value(options.limit, problem.activation.limit);
  apply_value(options.alpha, problem.activation.alpha);
  apply_value(options.beta, problem.activation.beta);
  problem.gate_up_bias = problem.gate_up_bias || options.bias;
  problem.down_bias = problem.down_bias || options.bias;
  problem.routed_scaling = options.routed_scaling.value_or(problem.routed_scaling);
  problem.router_weight_on_input = problem.router_weight_on_input || options.router_weight_on_input;
  problem.allow_atomics = problem.allow_atomics || options.allow_atomics;
  problem.batch_invariant = problem.batch_invariant || options.batch_invariant;
  if (options.max_workspace && *options.max_workspace <= 0) {
    return invalid_argument(
        fmt::format("--max-workspace {}: must be at least 1 byte", *options.max_workspace));
  }
  problem.max_workspace_bytes = options.max_workspace.value_or(problem.max_workspace_bytes);
  return {};
}

Status check_one_subject(const LayerOptions& options) {
  const int count =
      (options.checkpoint ? 1 : 0) + (options.preset ? 1 : 0) + (has_shape(options) ? 1 : 0);
  if (count != 1) {
    return invalid_argument(fmt::format(
        "{} subjects given, expected one of --checkpoint, --preset, or --experts with --top-k, "
        "--hidden and --intermediate",
        count));
  }
  if (options.layer && !options.checkpoint) {
    return invalid_argument(fmt::format("--layer {} without --checkpoint", *options.layer));
  }
  return {};
}

Result<Problem> problem_of_shape(const LayerOptions& options) {
  const std::array<std::pair<const char*, std::optional<std::int64_t>>, 4> extents{{
      {"--experts", options.experts},
      {"--top-k", options.top_k},
      {"--hidden", options.hidden},
      {"--intermediate", options.intermediate},
  }};
  std::vector<std::string_view> missing;
  for (const auto& [name, value] : extents) {
    if (!value) {
      missing.emplace_back(name);
    }
  }
  if (!missing.empty()) {
    return invalid_argument(fmt::format("shape without {}", fmt::join(missing, ", ")));
  }
  Problem problem;
  problem.num_experts = *options.experts;
  problem.top_k = *options.top_k;
  problem.hidden_size = *options.hidden;
  problem.intermediate_size = *options.intermediate;
  problem.recipe = Recipe::kW4a16Nvfp4;
  return problem;
}

Status open_layer(const LayerOptions& options, Subject& subject) {
  MOEKIT_ASSIGN_OR_RETURN(Checkpoint checkpoint, open_checkpoint(*options.checkpoint));
  MOEKIT_ASSIGN_OR_RETURN(const std::int64_t layer_id,
                          pick_layer(checkpoint.summary(), options.layer));
  MOEKIT_ASSIGN_OR_RETURN(CheckpointLayer layer, checkpoint.layer(layer_id));
  subject.problem = layer.problem;
  subject.label = checkpoint.summary().path;
  subject.checkpoint = std::move(checkpoint);
  subject.layer = std::move(layer);
  return {};
}

Result<DeviceDescriptor> cuda_device(std::string_view name) {
  std::optional<std::int64_t> wanted = 0;
  if (name != "cuda") {
    wanted = parse_integer<std::int64_t>(name.substr(5));  // behind `cuda:`
    if (!wanted || *wanted < 0) {
      return invalid_argument(fmt::format("--device {}: expected cuda or cuda:INDEX", name));
    }
  }
  std::int64_t num_cuda = 0;
  for (const DeviceDescriptor& device : list_devices()) {
    if (device.arch != Arch::kCpu && num_cuda++ == *wanted) {
      return device;
    }
  }
  return unsupported(fmt::format(
      "--device {}: this machine has {} CUDA devices that moekit can use; `--device sm_90a` plans "
      "without one",
      name,
      num_cuda));
}

}  // namespace

Result<Checkpoint> open_checkpoint(std::string path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    path.erase(std::max<std::size_t>(path.find_last_not_of('/') + 1, 1));
  }
  return Checkpoint::open(path);
}

Result<std::int64_t> pick_layer(const CheckpointSummary& summary,
                                const std::optional<std::int64_t>& layer) {
  if (layer) {
    return *layer;
  }
  if (summary.moe_layers.size() == 1) {
    return summary.moe_layers.front();
  }
  if (summary.moe_layers.empty()) {
    return invalid_argument(fmt::format("{} has no MoE layer that moekit knows", summary.path));
  }
  return invalid_argument(fmt::format("{} has {} MoE layers, choose one with --layer: {}",
                                      summary.path,
                                      summary.moe_layers.size(),
                                      fmt::join(summary.moe_layers, ", ")));
}

Result<DeviceDescriptor> resolve_device(const LayerOptions& options) {
  constexpr int kMaxThreads = 1024;
  if (options.threads && (*options.threads < 1 || *options.threads > kMaxThreads)) {
    return invalid_argument(
        fmt::format("--threads {}: expected 1 to {}", *options.threads, kMaxThreads));
  }
  const std::string name = options.device.value_or("cpu");
  const bool is_cuda = name == "cuda" || name.rfind("cuda:", 0) == 0;
  MOEKIT_ASSIGN_OR_RETURN(DeviceDescriptor device,
                          is_cuda ? cuda_device(name) : device_from_name(name));
  if (options.threads && device.arch != Arch::kCpu) {
    return invalid_argument(fmt::format(
        "--threads {} with --device {}: threads are of the CPU backend", *options.threads, name));
  }
  device.num_threads = options.threads.value_or(device.num_threads);
  return device;
}

Result<std::vector<std::int64_t>> parse_token_list(const std::string& text, std::int64_t minimum) {
  std::vector<std::int64_t> tokens;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t comma = std::min(text.find(',', start), text.size());
    const std::string_view word = std::string_view(text).substr(start, comma - start);
    const std::optional<std::int64_t> count = parse_integer<std::int64_t>(word);
    if (!count || *count < minimum) {
      return invalid_argument(fmt::format(
          "--tokens {}: '{}' is no token count, expected integers from {}", text, word, minimum));
    }
    tokens.push_back(*count);
    start = comma + 1;
  }
  return tokens;
}

Result<std::optional<Shard>> parse_shard(const LayerOptions& options) {
  if (!options.tp && !options.ep) {
    return std::optional<Shard>();
  }
  Shard shard;
  const auto read = [](const std::optional<std::string>& text,
                       std::string_view option,
                       std::int64_t& rank,
                       std::int64_t& size) -> Status {
    if (!text) {
      return {};
    }
    const std::size_t slash = std::min(text->find('/'), text->size());
    const auto first = parse_integer<std::int64_t>(std::string_view(*text).substr(0, slash));
    const auto second = parse_integer<std::int64_t>(
        std::string_view(*text).substr(std::min(slash + 1, text->size())));
    if (!first || !second) {
      return invalid_argument(fmt::format("{} {}: expected RANK/SIZE", option, *text));
    }
    rank = *first;
    size = *second;
    return {};
  };
  MOEKIT_RETURN_IF_ERROR(read(options.tp, "--tp", shard.tp_rank, shard.tp_size));
  MOEKIT_RETURN_IF_ERROR(read(options.ep, "--ep", shard.ep_rank, shard.ep_size));
  return std::optional<Shard>(shard);
}

Result<PlanOverrides> parse_pins(const std::vector<std::string>& pins) {
  constexpr const char* kLegal =
      "family=direct|grouped, route_block_rows=8|16|32|48|64, tile=NAME, resident, pdl_first";
  constexpr std::array<std::int64_t, 5> kBlockRows{8, 16, 32, 48, 64};
  PlanOverrides overrides;
  std::map<std::string, std::string> pin_of;
  for (const std::string& pin : pins) {
    const std::size_t equals = pin.find('=');
    const std::string key = pin.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : pin.substr(equals + 1);
    const bool has_value = equals != std::string::npos;
    if (const auto [first, is_first] = pin_of.emplace(key, pin); !is_first) {
      return invalid_argument(
          fmt::format("--pin {} after --pin {}: one value a key", pin, first->second));
    }
    if (key == "family" && (value == "direct" || value == "grouped")) {
      overrides.family = value == "direct" ? ExecutionFamily::kDirect : ExecutionFamily::kGrouped;
    } else if (const auto rows = parse_integer<std::int64_t>(value);
               key == "route_block_rows" && rows &&
               std::find(kBlockRows.begin(), kBlockRows.end(), *rows) != kBlockRows.end()) {
      overrides.route_block_rows = rows;
    } else if (key == "tile" && !value.empty()) {
      overrides.tile = value;
    } else if (key == "resident" && !has_value) {
      overrides.resident = true;
    } else if (key == "pdl_first" && !has_value) {
      overrides.pdl_first = true;
    } else {
      return invalid_argument(fmt::format("--pin {}: expected one of {}", pin, kLegal));
    }
  }
  return overrides;
}

Result<Subject> resolve_subject(const LayerOptions& options) {
  MOEKIT_RETURN_IF_ERROR(check_one_subject(options));
  Subject subject;
  MOEKIT_ASSIGN_OR_RETURN(subject.device, resolve_device(options));
  MOEKIT_ASSIGN_OR_RETURN(subject.overrides, parse_pins(options.pins));
  if (options.checkpoint) {
    MOEKIT_RETURN_IF_ERROR(open_layer(options, subject));
  } else if (options.preset) {
    MOEKIT_ASSIGN_OR_RETURN(subject.problem, preset_problem(*options.preset));
    subject.label = *options.preset;
  } else {
    MOEKIT_ASSIGN_OR_RETURN(subject.problem, problem_of_shape(options));
  }
  subject.problem.num_tokens = 0;
  MOEKIT_RETURN_IF_ERROR(apply_semantics(options, subject.problem));
  return subject;
}

}  // namespace moekit::cli
