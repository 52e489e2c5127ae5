// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_matrix.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/reports.h"

namespace moekit::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 11> kDevices{"cpu:portable",
                                                    "cpu:avx2",
                                                    "cpu:avx512",
                                                    "cpu:amx",
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

/// Consecutive M of one status: that of the rung's least proven step.
void fill_status(const Plan& plan, SupportCell& cell) {
  cell.status = StepStatus::kMeasured;
  for (const Rung& rung : plan->ladder) {
    StepStatus worst = StepStatus::kMeasured;
    for (const Step& step : rung.steps) {
      worst = std::max(worst, step.status);  // enumerators are ordered by how much is unproven
    }
    if (!cell.ranges.empty() && cell.ranges.back().second == worst) {
      cell.ranges.pop_back();
    }
    cell.ranges.emplace_back(rung.m_max, worst);
    cell.status = std::max(*cell.status, worst);
  }
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
    fill_status(*plan, cell);
  } else if (plan.status().code() == StatusCode::kInvalidArgument) {
    return plan.status();
  } else {
    cell.reason = std::string(plan.status().message());
  }
  return cell;
}

/// `measured`, or `measured to M 64, planned beyond`.
std::string cell_word(const SupportCell& cell) {
  if (!cell.status) {
    return "refused";
  }
  std::vector<std::string> parts;
  for (const auto& [m_max, status] : cell.ranges) {
    parts.push_back(fmt::format("{} to M {}", step_status_name(status), m_max));
  }
  const std::string last(step_status_name(cell.ranges.back().second));
  parts.back() = parts.size() == 1 ? last : last + " beyond";
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// The reason without the device that it was given for, which stands before it.
std::string general_reason(const SupportCell& cell) {
  const std::string name = cell.device.substr(0, cell.device.find(':'));
  std::string text = cell.reason;
  for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at)) {
    text.replace(at, name.size(), "it");
    at += 2;
  }
  return text;
}

/// Refusals of one recipe and reason: the devices once each, in the order of the columns.
std::string refusal_lines(const SupportMatrix& matrix) {
  std::vector<std::pair<std::string, std::vector<std::string>>> lines;  // reason, devices
  for (const SupportCell& cell : matrix) {
    if (cell.status) {
      continue;
    }
    const std::string reason = general_reason(cell);
    auto line = std::find_if(
        lines.begin(), lines.end(), [&](const auto& known) { return known.first == reason; });
    if (line == lines.end()) {
      line = lines.insert(lines.end(), {reason, {}});
    }
    if (std::find(line->second.begin(), line->second.end(), cell.device) == line->second.end()) {
      line->second.push_back(cell.device);
    }
  }
  std::string text = lines.empty() ? "" : "Refused:\n\n";
  for (const auto& [reason, devices] : lines) {
    text += fmt::format("* {}: {}\n", fmt::join(devices, ", "), reason);
  }
  return text;
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
  for (const RecipeInfo& recipe : kRecipes) {
    text += fmt::format("| `{}` |", recipe.name);
    for (const auto& [device, figures] : request.devices) {
      SupportMatrix cells;
      for (const SupportCell& cell : matrix) {
        if (cell.recipe == recipe.recipe && cell.device == device) {
          cells.push_back(cell);
        }
      }
      text += fmt::format(" {} |", column_word(cells));
    }
    text += '\n';
  }
  const Problem& p = request.problem;
  text += fmt::format(
      "\nOf E {}, top-{}, H {}, I {} for M up to {}: the least proven kernel of each M. "
      "Activations: {}.\n",
      p.num_experts,
      p.top_k,
      p.hidden_size,
      p.intermediate_size,
      p.num_tokens,
      activation_names());
  const std::string refusals = refusal_lines(matrix);
  return refusals.empty() ? text : text + "\n" + refusals;
}

std::string matrix_json(const MatrixRequest& request, const SupportMatrix& matrix) {
  Json rows = Json::array();
  for (const SupportCell& cell : matrix) {
    Json ranges = Json::array();
    for (const auto& [m_max, status] : cell.ranges) {
      ranges.push_back({{"m_max", m_max}, {"status", step_status_name(status)}});
    }
    rows.push_back({{"recipe", recipe_info(cell.recipe).name},
                    {"device", cell.device},
                    {"activation", activation_name(cell.activation)},
                    {"status", cell.status ? Json(step_status_name(*cell.status)) : Json(nullptr)},
                    {"ranges", ranges},
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
