// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/quantize_config.h"

#include <array>

#include <nlohmann/json.hpp>

#include "checkpoint/json_text.h"

namespace moekit::checkpoint {
namespace {

using base::member;
using base::set_member;
using nlohmann::json;

// Everything but the routed experts stays as it is. Both tools read shell-like patterns.
constexpr std::array kKept{"lm_head",
                           "*embed_tokens*",
                           "*attn*",
                           "*mixer.in_proj*",
                           "*mixer.out_proj*",
                           "*.gate",
                           "*.router",
                           "*shared_expert*"};

void write_modelopt(json& section, const QuantizeOptions& options, const char* excluded) {
  const bool nvfp4 = options.format == Format::kNvfp4;
  set_member(section, "quant_algo", nvfp4 ? "W4A16_NVFP4" : "W4A16_MXFP4");
  set_member(section, "group_size", format_info(options.format).group_size);
  set_member(section, excluded, kKept);
}

void write_compressed(json& section, const QuantizeOptions& options) {
  const bool nvfp4 = options.format == Format::kNvfp4;
  const char* const format = nvfp4 ? "nvfp4-pack-quantized" : "mxfp4-pack-quantized";
  set_member(section, "quant_method", "compressed-tensors");
  set_member(section, "format", format);
  set_member(section, "quantization_status", "compressed");
  set_member(section, "ignore", std::array{"lm_head"});
  json& group = member(member(section, "config_groups"), "group_0");
  set_member(group, "targets", std::array{"re:.*[.]experts[.][0-9]+[.].*"});
  set_member(group, "input_activations", nullptr);
  set_member(group, "output_activations", nullptr);
  set_member(group, "format", format);
  json& weights = member(group, "weights");
  set_member(weights, "num_bits", 4);
  set_member(weights, "type", "float");
  set_member(weights, "strategy", nvfp4 ? "tensor_group" : "group");
  set_member(weights, "group_size", format_info(options.format).group_size);
  set_member(weights, "symmetric", true);
  set_member(weights, "dynamic", false);
}

}  // namespace

Result<std::string> quantized_config(const std::string& config, const QuantizeOptions& options) {
  Document root;
  if (!config.empty()) {
    MOEKIT_ASSIGN_OR_RETURN(root, parse_json(wrap_python_literals(config)));
    if (!root->is_object()) {
      return invalid_argument("config.json is not a JSON object");
    }
  }
  json& section = member(*root, "quantization_config");
  base::take_apart(section);
  section = nullptr;  // whatever it was
  if (options.naming == QuantizedNaming::kModelopt) {
    write_modelopt(section, options, "ignore");
    set_member(section, "quant_method", "modelopt");
  } else {
    write_compressed(section, options);
  }
  return root->dump(2) + "\n";
}

std::string quantized_hf_config(const QuantizeOptions& options) {
  if (options.naming != QuantizedNaming::kModelopt) {
    return {};
  }
  Document root;
  set_member(member(*root, "producer"), "name", "moekit");
  write_modelopt(member(*root, "quantization"), options, "exclude_modules");
  return root->dump(2) + "\n";
}

}  // namespace moekit::checkpoint
