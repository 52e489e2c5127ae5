// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_matrix.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/reports.h"

namespace moekit::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 10> kDevices{"cpu:portable",
                                                    "cpu:avx2",
                                                    "cpu:avx512",
                                                    "sm_80",
                                                    "sm_86",
                                                    "sm_89",
                                                    "sm_90a",
                                                    "sm_100a",
                                                    "sm_120a",
                                                    "sm_121a"};

constexpr std::array kActivations{ActivationKind::kSilu,
                                  ActivationKind::kSwigluOai,
                                  ActivationKind::kSitu,
                                  ActivationKind::kGeluTanh,
                                  ActivationKind::kRelu2};

StepStatus least_proven(const Plan& plan) {
  StepStatus worst = StepStatus::kMeasured;
  for (const Rung& rung : plan->ladder) {
    for (const Step& step : rung.steps) {
      worst = std::max(worst, step.status);  // enumerators are ordered by how much is unproven
    }
  }
  return worst;
}

Result<SupportCell> ask(const MatrixRequest& request,
                        Recipe recipe,
                        const std::pair<std::string, DeviceDescriptor>& device,
                        ActivationKind activation) {
  SupportCell cell{recipe, device.first, activation};
  Problem problem = request.problem;
  problem.recipe = recipe;
  if (problem.activation.kind != activation) {
    problem.activation = Activation{};  // parameters of another kind would be errors
    problem.activation.kind = activation;
  }
  const Result<Plan> plan = make_plan(problem, device.second, request.overrides);
  if (plan) {
    cell.status = least_proven(*plan);
  } else if (plan.status().code() == StatusCode::kInvalidArgument) {
    return plan.status();
  } else {
    cell.reason = std::string(plan.status().message());
  }
  return cell;
}

std::string cell_word(const SupportCell& cell) {
  return cell.status ? std::string(step_status_name(*cell.status)) : "refused";
}

/// `compiled`, or `compiled; refused: relu2` where activations differ.
std::string column_word(const SupportMatrix& cells) {
  std::vector<std::pair<std::string, std::vector<std::string_view>>> words;
  for (const SupportCell& cell : cells) {
    const std::string word = cell_word(cell);
    auto found =
        std::find_if(words.begin(), words.end(), [&](const auto& w) { return w.first == word; });
    if (found == words.end()) {
      words.push_back({word, {}});
      found = words.end() - 1;
    }
    found->second.push_back(activation_name(cell.activation));
  }
  if (words.size() == 1) {
    return words.front().first;
  }
  std::vector<std::string> parts;
  for (const auto& [word, activations] : words) {
    parts.push_back(fmt::format("{}: {}", word, fmt::join(activations, ", ")));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::string activation_names() {
  std::vector<std::string_view> names;
  for (const ActivationKind kind : kActivations) {
    names.push_back(activation_name(kind));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

Result<std::vector<std::pair<std::string, DeviceDescriptor>>> matrix_devices() {
  std::vector<std::pair<std::string, DeviceDescriptor>> devices;
  for (const std::string_view name : kDevices) {
    MOEKIT_ASSIGN_OR_RETURN(const DeviceDescriptor device, device_from_name(name));
    devices.emplace_back(name, device);
  }
  return devices;
}

Result<SupportMatrix> support_matrix(const MatrixRequest& request) {
  SupportMatrix matrix;
  for (const RecipeInfo& recipe : kRecipes) {
    for (const auto& device : request.devices) {
      for (const ActivationKind activation : kActivations) {
        MOEKIT_ASSIGN_OR_RETURN(SupportCell cell, ask(request, recipe.recipe, device, activation));
        matrix.push_back(std::move(cell));
      }
    }
  }
  return matrix;
}

std::string matrix_markdown(const MatrixRequest& request, const SupportMatrix& matrix) {
  std::string text = "| recipe |";
  std::string rule = "|---|";
  for (const auto& [name, device] : request.devices) {
    text += fmt::format(" {} |", name);
    rule += "---|";
  }
  text += fmt::format("\n{}\n", rule);
  std::map<std::string, std::int64_t> refusals;  // reason -> cells
  for (const RecipeInfo& recipe : kRecipes) {
    text += fmt::format("| `{}` |", recipe.name);
    for (const auto& [device, figures] : request.devices) {
      SupportMatrix cells;
      for (const SupportCell& cell : matrix) {
        if (cell.recipe == recipe.recipe && cell.device == device) {
          cells.push_back(cell);
          if (!cell.status) {
            ++refusals[cell.reason];
          }
        }
      }
      text += fmt::format(" {} |", column_word(cells));
    }
    text += '\n';
  }
  const Problem& p = request.problem;
  text += fmt::format(
      "\nOf E {}, top-{}, H {}, I {} for every M up to {}: the least proven kernel of any M. "
      "Activations: {}.\n",
      p.num_experts,
      p.top_k,
      p.hidden_size,
      p.intermediate_size,
      p.num_tokens,
      activation_names());
  if (!refusals.empty()) {
    text += fmt::format("Refusals, of {} cells:\n\n", matrix.size());
  }
  for (const auto& [reason, num_cells] : refusals) {
    text += fmt::format("* {} cells: {}\n", num_cells, reason);
  }
  return text;
}

std::string matrix_json(const MatrixRequest& request, const SupportMatrix& matrix) {
  Json rows = Json::array();
  for (const SupportCell& cell : matrix) {
    rows.push_back({{"recipe", recipe_info(cell.recipe).name},
                    {"device", cell.device},
                    {"activation", activation_name(cell.activation)},
                    {"status", cell.status ? Json(step_status_name(*cell.status)) : Json(nullptr)},
                    {"reason", cell.status ? Json(nullptr) : Json(cell.reason)}});
  }
  const Problem& p = request.problem;
  const Json shape{{"num_experts", p.num_experts},
                   {"top_k", p.top_k},
                   {"hidden_size", p.hidden_size},
                   {"intermediate_size", p.intermediate_size},
                   {"num_tokens", p.num_tokens}};
  return json_text({{"schema", kPlanSchema}, {"shape", shape}, {"matrix", rows}});
}

}  // namespace moekit::cli
