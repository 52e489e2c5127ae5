// SPDX-License-Identifier: Apache-2.0

// A verify case as one line of text and back. One row of kFields per word of the line: how it is
// written and how it is read stand side by side, defaults are left out.

#include <algorithm>
#include <charconv>

#include "moekit/verify.h"

#include "base/border.h"
#include "base/text.h"
#include "runtime/verify_quirks.h"

namespace moekit {
namespace {

using base::cat;

Status bad_value(std::string_view key, std::string_view text, std::string_view expected) {
  return invalid_argument(cat("verify case: ", key, "=", text, ", expected ", expected));
}

template <typename Integer>
Status read_integer(std::string_view key, std::string_view text, Integer& value) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size()
             ? Status()
             : bad_value(key, text, "an integer");
}

Status read_float(std::string_view key, std::string_view text, float& value) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size()
             ? Status()
             : bad_value(key, text, "a number");
}

Status read_float(std::string_view key, std::string_view text, std::optional<float>& value) {
  value.emplace();
  return read_float(key, text, *value);
}

Status read_bool(std::string_view key, std::string_view text, bool& value) {
  value = text == "1";
  return text == "0" || text == "1" ? Status() : bad_value(key, text, "0 or 1");
}

template <typename Value, typename Lookup>
Status read_name(std::string_view key, std::string_view text, const Lookup& lookup, Value& value) {
  const auto found = lookup(text);
  if (!found.has_value()) {
    return bad_value(key, text, "a known name");
  }
  value = *found;
  return {};
}

std::string float_text(const std::optional<float>& value) {
  return value.has_value() ? cat(*value) : std::string();
}

std::string flag_text(bool value) {
  return value ? "1" : "";
}

std::string count_text(std::int64_t value) {
  return value == 0 ? "" : cat(value);
}

// routing=softmax,groups:4:2,renormalize,scale:2.5,bias
std::string routing_text(const std::optional<Routing>& routing) {
  if (!routing.has_value()) {
    return {};
  }
  std::string text(scoring_name(routing->scoring));
  if (routing->num_groups != 1 || routing->top_groups != 1) {
    text += cat(",groups:", routing->num_groups, ":", routing->top_groups);
  }
  if (routing->renormalize) {
    text += ",renormalize";
  }
  if (routing->scale != 1.0F) {
    text += cat(",scale:", routing->scale);
  }
  text += routing->correction_bias ? ",bias" : "";
  text += routing->expert_scale ? ",expert_scale" : "";
  return routing->hash_table ? text + ",hash" : text;
}

Status read_routing_word(std::string_view word, Routing& routing) {
  if (word == "renormalize") {
    routing.renormalize = true;
    return {};
  }
  if (word == "bias") {
    routing.correction_bias = true;
    return {};
  }
  if (word == "expert_scale") {
    routing.expert_scale = true;
    return {};
  }
  if (word == "hash") {
    routing.hash_table = true;
    return {};
  }
  if (word.substr(0, 6) == "scale:") {
    return read_float("routing scale", word.substr(6), routing.scale);
  }
  if (word.substr(0, 7) == "groups:") {
    const std::string_view counts = word.substr(7);
    const std::size_t colon = counts.find(':');
    if (colon != std::string_view::npos) {
      MOEKIT_RETURN_IF_ERROR(
          read_integer("routing groups", counts.substr(0, colon), routing.num_groups));
      return read_integer("routing groups", counts.substr(colon + 1), routing.top_groups);
    }
  }
  return bad_value(
      "routing", word, "renormalize, bias, expert_scale, hash, scale:X or groups:N:TOP");
}

Status read_routing(std::string_view text, std::optional<Routing>& routing) {
  routing.emplace();
  std::size_t comma = text.find(',');
  MOEKIT_RETURN_IF_ERROR(
      read_name("routing", text.substr(0, comma), scoring_from_name, routing->scoring));
  while (comma != std::string_view::npos) {
    text.remove_prefix(comma + 1);
    comma = text.find(',');
    MOEKIT_RETURN_IF_ERROR(read_routing_word(text.substr(0, comma), *routing));
  }
  return {};
}

std::string bias_text(const Problem& problem) {
  if (problem.gate_up_bias && problem.down_bias) {
    return "both";
  }
  return problem.gate_up_bias ? "gate_up" : (problem.down_bias ? "down" : "");
}

Status read_bias(std::string_view text, Problem& problem) {
  problem.gate_up_bias = text == "both" || text == "gate_up";
  problem.down_bias = text == "both" || text == "down";
  return problem.gate_up_bias || problem.down_bias
             ? Status()
             : bad_value("bias", text, "gate_up, down or both");
}

// 2.5@sum
std::string scaling_text(const Problem& problem) {
  return problem.routed_scaling == 1.0F && problem.routed_scaling_place == ScalingPlace::kWeights
             ? ""
             : cat(problem.routed_scaling, "@", scaling_place_name(problem.routed_scaling_place));
}

Status read_scaling(std::string_view text, Problem& problem) {
  const std::size_t at = text.find('@');
  if (at == std::string_view::npos) {
    return bad_value("scaling", text, "X@weights or X@sum");
  }
  MOEKIT_RETURN_IF_ERROR(read_float("scaling", text.substr(0, at), problem.routed_scaling));
  return read_name(
      "scaling", text.substr(at + 1), scaling_place_from_name, problem.routed_scaling_place);
}

std::string family_text(const PlanOverrides& overrides) {
  return overrides.family.has_value() ? std::string(execution_family_name(*overrides.family)) : "";
}

Status read_family(std::string_view text, PlanOverrides& overrides) {
  for (const ExecutionFamily family : {ExecutionFamily::kDirect, ExecutionFamily::kGrouped}) {
    if (execution_family_name(family) == text) {
      overrides.family = family;
      return {};
    }
  }
  return bad_value("family", text, "direct or grouped");
}

struct Field {
  std::string_view key;
  /// Empty: the default, left out.
  std::string (*write)(const VerifyCase& verify_case);
  Status (*read)(std::string_view text, VerifyCase& verify_case);
};

constexpr Field kFields[] = {
    {"recipe",
     [](const VerifyCase& c) { return std::string(recipe_info(c.problem.recipe).name); },
     [](std::string_view t, VerifyCase& c) {
       return read_name("recipe", t, recipe_from_name, c.problem.recipe);
     }},
    {"h",
     [](const VerifyCase& c) { return cat(c.problem.hidden_size); },
     [](std::string_view t, VerifyCase& c) { return read_integer("h", t, c.problem.hidden_size); }},
    {"i",
     [](const VerifyCase& c) { return cat(c.problem.intermediate_size); },
     [](std::string_view t, VerifyCase& c) {
       return read_integer("i", t, c.problem.intermediate_size);
     }},
    {"e",
     [](const VerifyCase& c) { return cat(c.problem.num_experts); },
     [](std::string_view t, VerifyCase& c) { return read_integer("e", t, c.problem.num_experts); }},
    {"k",
     [](const VerifyCase& c) { return cat(c.problem.top_k); },
     [](std::string_view t, VerifyCase& c) { return read_integer("k", t, c.problem.top_k); }},
    {"m",
     [](const VerifyCase& c) { return cat(c.num_tokens); },
     [](std::string_view t, VerifyCase& c) { return read_integer("m", t, c.num_tokens); }},
    {"capacity",
     [](const VerifyCase& c) {
       return c.problem.num_tokens == c.num_tokens ? "" : cat(c.problem.num_tokens);
     },
     [](std::string_view t, VerifyCase& c) {
       return read_integer("capacity", t, c.problem.num_tokens);
     }},
    {"seed",
     [](const VerifyCase& c) { return cat(c.seed); },
     [](std::string_view t, VerifyCase& c) { return read_integer("seed", t, c.seed); }},
    {"activation",
     [](const VerifyCase& c) { return std::string(activation_name(c.problem.activation.kind)); },
     [](std::string_view t, VerifyCase& c) {
       return read_name("activation", t, activation_from_name, c.problem.activation.kind);
     }},
    {"limit",
     [](const VerifyCase& c) { return float_text(c.problem.activation.limit); },
     [](std::string_view t, VerifyCase& c) {
       return read_float("limit", t, c.problem.activation.limit);
     }},
    {"alpha",
     [](const VerifyCase& c) { return float_text(c.problem.activation.alpha); },
     [](std::string_view t, VerifyCase& c) {
       return read_float("alpha", t, c.problem.activation.alpha);
     }},
    {"beta",
     [](const VerifyCase& c) { return float_text(c.problem.activation.beta); },
     [](std::string_view t, VerifyCase& c) {
       return read_float("beta", t, c.problem.activation.beta);
     }},
    {"gate_scale",
     [](const VerifyCase& c) { return float_text(c.problem.activation.gate_scale); },
     [](std::string_view t, VerifyCase& c) {
       return read_float("gate_scale", t, c.problem.activation.gate_scale);
     }},
    {"up_scale",
     [](const VerifyCase& c) { return float_text(c.problem.activation.up_scale); },
     [](std::string_view t, VerifyCase& c) {
       return read_float("up_scale", t, c.problem.activation.up_scale);
     }},
    {"row_order",
     [](const VerifyCase& c) {
       return c.problem.row_order == RowOrder::kGateUp
                  ? ""
                  : std::string(row_order_name(c.problem.row_order));
     },
     [](std::string_view t, VerifyCase& c) {
       return read_name("row_order", t, row_order_from_name, c.problem.row_order);
     }},
    {"bias",
     [](const VerifyCase& c) { return bias_text(c.problem); },
     [](std::string_view t, VerifyCase& c) { return read_bias(t, c.problem); }},
    {"scaling",
     [](const VerifyCase& c) { return scaling_text(c.problem); },
     [](std::string_view t, VerifyCase& c) { return read_scaling(t, c.problem); }},
    {"weight_on_input",
     [](const VerifyCase& c) { return flag_text(c.problem.router_weight_on_input); },
     [](std::string_view t, VerifyCase& c) {
       return read_bool("weight_on_input", t, c.problem.router_weight_on_input);
     }},
    {"io",
     [](const VerifyCase& c) {
       return c.problem.io_dtype == DType::kBf16 ? "" : std::string(dtype_name(c.problem.io_dtype));
     },
     [](std::string_view t, VerifyCase& c) {
       return read_name("io", t, dtype_from_name, c.problem.io_dtype);
     }},
    {"shared",
     [](const VerifyCase& c) {
       return c.problem.shared == SharedInput::kNone
                  ? ""
                  : std::string(shared_input_name(c.problem.shared));
     },
     [](std::string_view t, VerifyCase& c) {
       return read_name("shared", t, shared_input_from_name, c.problem.shared);
     }},
    {"order",
     [](const VerifyCase& c) {
       return c.problem.combine_order == CombineOrder::kSlot
                  ? ""
                  : std::string(combine_order_name(c.problem.combine_order));
     },
     [](std::string_view t, VerifyCase& c) {
       return read_name("order", t, combine_order_from_name, c.problem.combine_order);
     }},
    {"router_experts",
     [](const VerifyCase& c) { return count_text(c.problem.router_experts); },
     [](std::string_view t, VerifyCase& c) {
       return read_integer("router_experts", t, c.problem.router_experts);
     }},
    {"map",
     [](const VerifyCase& c) { return flag_text(c.problem.expert_map); },
     [](std::string_view t, VerifyCase& c) { return read_bool("map", t, c.problem.expert_map); }},
    {"group_size",
     [](const VerifyCase& c) { return count_text(c.problem.weight_group_size); },
     [](std::string_view t, VerifyCase& c) {
       return read_integer("group_size", t, c.problem.weight_group_size);
     }},
    {"row_offset",
     [](const VerifyCase& c) { return count_text(c.problem.gate_up_row_offset); },
     [](std::string_view t, VerifyCase& c) {
       return read_integer("row_offset", t, c.problem.gate_up_row_offset);
     }},
    {"group_offset",
     [](const VerifyCase& c) { return count_text(c.problem.down_group_offset); },
     [](std::string_view t, VerifyCase& c) {
       return read_integer("group_offset", t, c.problem.down_group_offset);
     }},
    {"routing",
     [](const VerifyCase& c) { return routing_text(c.problem.routing); },
     [](std::string_view t, VerifyCase& c) { return read_routing(t, c.problem.routing); }},
    {"max_workspace",
     [](const VerifyCase& c) { return count_text(c.problem.max_workspace_bytes); },
     [](std::string_view t, VerifyCase& c) {
       return read_integer("max_workspace", t, c.problem.max_workspace_bytes);
     }},
    {"atomics",
     [](const VerifyCase& c) { return flag_text(c.problem.allow_atomics); },
     [](std::string_view t, VerifyCase& c) {
       return read_bool("atomics", t, c.problem.allow_atomics);
     }},
    {"batch_invariant",
     [](const VerifyCase& c) { return flag_text(c.problem.batch_invariant); },
     [](std::string_view t, VerifyCase& c) {
       return read_bool("batch_invariant", t, c.problem.batch_invariant);
     }},
    {"family",
     [](const VerifyCase& c) { return family_text(c.overrides); },
     [](std::string_view t, VerifyCase& c) { return read_family(t, c.overrides); }},
    {"route_block_rows",
     [](const VerifyCase& c) { return count_text(c.overrides.route_block_rows.value_or(0)); },
     [](std::string_view t, VerifyCase& c) {
       return read_integer("route_block_rows", t, c.overrides.route_block_rows.emplace());
     }},
    {"tile",
     [](const VerifyCase& c) { return c.overrides.tile.value_or(""); },
     [](std::string_view t, VerifyCase& c) {
       c.overrides.tile = std::string(t);
       return Status();
     }},
    {"resident",
     [](const VerifyCase& c) { return flag_text(c.overrides.resident); },
     [](std::string_view t, VerifyCase& c) {
       return read_bool("resident", t, c.overrides.resident);
     }},
    {"pdl_first",
     [](const VerifyCase& c) { return flag_text(c.overrides.pdl_first); },
     [](std::string_view t, VerifyCase& c) {
       return read_bool("pdl_first", t, c.overrides.pdl_first);
     }},
    {"quirk",
     [](const VerifyCase& c) { return c.quirk.empty() ? "none" : c.quirk; },
     [](std::string_view t, VerifyCase& c) {
       c.quirk = std::string(t);
       return verify::quirks_from_name(t).status();
     }},
};

Status read_word(std::string_view word, VerifyCase& verify_case, std::vector<std::string>& seen) {
  const std::size_t equals = word.find('=');
  const std::string_view key = word.substr(0, equals);
  for (const Field& field : kFields) {
    if (field.key == key && equals != std::string_view::npos) {
      for (const std::string& earlier : seen) {
        if (earlier == key) {
          return invalid_argument(cat("verify case: ", key, "= stands twice"));
        }
      }
      seen.emplace_back(key);
      return field.read(word.substr(equals + 1), verify_case);
    }
  }
  std::vector<std::string_view> keys;
  for (const Field& field : kFields) {
    keys.push_back(field.key);
  }
  return invalid_argument(
      cat("verify case: '", word, "', expected KEY=VALUE with KEY of: ", base::join(keys)));
}

Status check_case(VerifyCase& verify_case, const std::vector<std::string>& seen) {
  const auto given = [&seen](std::string_view key) {
    return std::find(seen.begin(), seen.end(), key) != seen.end();
  };
  for (const std::string_view key : {"recipe", "h", "i", "e", "k", "m"}) {
    if (!given(key)) {
      return invalid_argument(cat("verify case: ", key, "= is missing"));
    }
  }
  if (!given("capacity")) {
    verify_case.problem.num_tokens = verify_case.num_tokens;
  }
  if (verify_case.quirk.empty()) {
    verify_case.quirk = "none";
  }
  if (verify_case.problem.routing.has_value()) {
    verify_case.problem.routing->num_experts = num_router_experts(verify_case.problem);
    verify_case.problem.routing->top_k = verify_case.problem.top_k;
  }
  if (verify_case.num_tokens < 0 || verify_case.num_tokens > verify_case.problem.num_tokens) {
    return invalid_argument(cat("verify case: m ",
                                verify_case.num_tokens,
                                ", expected 0..capacity ",
                                verify_case.problem.num_tokens));
  }
  return validate_problem(verify_case.problem).with_context("verify case");
}

}  // namespace

Result<std::string> verify_case_line(const VerifyCase& verify_case) noexcept {
  return base::at_border([&]() -> Result<std::string> {
    std::string line;
    for (const Field& field : kFields) {
      const std::string text = field.write(verify_case);
      if (!text.empty()) {
        line += cat(line.empty() ? "" : " ", field.key, "=", text);
      }
    }
    return line;
  });
}

Result<VerifyCase> parse_verify_case(std::string_view line) noexcept {
  return base::at_border([&]() -> Result<VerifyCase> {
    VerifyCase verify_case;
    std::vector<std::string> seen;
    while (!line.empty()) {
      const std::size_t space = line.find_first_of(" \t\n");
      const std::string_view word = line.substr(0, space);
      line.remove_prefix(space == std::string_view::npos ? line.size() : space + 1);
      if (!word.empty()) {
        MOEKIT_RETURN_IF_ERROR(read_word(word, verify_case, seen));
      }
    }
    MOEKIT_RETURN_IF_ERROR(check_case(verify_case, seen));
    return verify_case;
  });
}

}  // namespace moekit
