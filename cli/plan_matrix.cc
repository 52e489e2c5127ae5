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

/// The CPU by instruction set, so that the matrix does not depend on the machine that prints it.
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

SupportCell ask(Problem problem, std::string_view device_name, ActivationKind activation) {
  SupportCell cell{problem.recipe, std::string(device_name), activation};
  problem.activation = Activation{};
  problem.activation.kind = activation;
  const Result<DeviceDescriptor> device = device_from_name(device_name);
  if (!device) {
    cell.reason = std::string(device.status().message());
    return cell;
  }
  const Result<Plan> plan = make_plan(problem, *device);
  if (plan) {
    cell.status = least_proven(*plan);
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

SupportMatrix support_matrix(const Problem& problem) {
  SupportMatrix matrix;
  for (const RecipeInfo& recipe : kRecipes) {
    for (const std::string_view device : kDevices) {
      for (const ActivationKind activation : kActivations) {
        Problem asked = problem;
        asked.recipe = recipe.recipe;
        matrix.push_back(ask(asked, device, activation));
      }
    }
  }
  return matrix;
}

std::string matrix_markdown(const SupportMatrix& matrix) {
  std::string text = fmt::format("| recipe | {} |\n|---|", fmt::join(kDevices, " | "));
  for (std::size_t i = 0; i < kDevices.size(); ++i) {
    text += "---|";
  }
  text += '\n';
  std::map<std::string, std::int64_t> refusals;  // reason -> cells
  for (const RecipeInfo& recipe : kRecipes) {
    text += fmt::format("| `{}` |", recipe.name);
    for (const std::string_view device : kDevices) {
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
  text += fmt::format("\nActivations: {}.\n", activation_names());
  if (!refusals.empty()) {
    text += fmt::format("Refusals, of {} cells:\n\n", matrix.size());
  }
  for (const auto& [reason, num_cells] : refusals) {
    text += fmt::format("* {} cells: {}\n", num_cells, reason);
  }
  return text;
}

std::string matrix_json(const SupportMatrix& matrix) {
  Json rows = Json::array();
  for (const SupportCell& cell : matrix) {
    rows.push_back({{"recipe", recipe_info(cell.recipe).name},
                    {"device", cell.device},
                    {"activation", activation_name(cell.activation)},
                    {"status", cell.status ? Json(step_status_name(*cell.status)) : Json(nullptr)},
                    {"reason", cell.status ? Json(nullptr) : Json(cell.reason)}});
  }
  return json_text({{"schema", kPlanSchema}, {"matrix", rows}});
}

}  // namespace moekit::cli
