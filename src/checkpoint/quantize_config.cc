// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/quantize_config.h"

#include <nlohmann/json.hpp>

#include "checkpoint/json_text.h"

namespace moekit::checkpoint {
namespace {

using nlohmann::json;

// Everything but the routed experts stays as it is. Both tools read shell-like patterns.
const json kKept = json::array({"lm_head",
                                "*embed_tokens*",
                                "*attn*",
                                "*mixer.in_proj*",
                                "*mixer.out_proj*",
                                "*.gate",
                                "*.router",
                                "*shared_expert*"});

json modelopt_section(const QuantizeOptions& options, const char* excluded) {
  const FormatInfo& info = format_info(options.format);
  return {{"quant_algo", options.format == Format::kNvfp4 ? "W4A16_NVFP4" : "W4A16_MXFP4"},
          {"group_size", info.group_size},
          {excluded, kKept}};
}

json compressed_section(const QuantizeOptions& options) {
  const FormatInfo& info = format_info(options.format);
  const bool nvfp4 = options.format == Format::kNvfp4;
  const std::string format = nvfp4 ? "nvfp4-pack-quantized" : "mxfp4-pack-quantized";
  const json weights{{"num_bits", 4},
                     {"type", "float"},
                     {"strategy", nvfp4 ? "tensor_group" : "group"},
                     {"group_size", info.group_size},
                     {"symmetric", true},
                     {"dynamic", false}};
  const json group{{"targets", {"re:.*[.]experts[.][0-9]+[.].*"}},
                   {"weights", weights},
                   {"input_activations", nullptr},
                   {"output_activations", nullptr},
                   {"format", format}};
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"quantization_status", "compressed"},
          {"config_groups", {{"group_0", group}}},
          {"ignore", json::array({"lm_head"})}};
}

}  // namespace

Result<std::string> quantized_config(const std::string& config, const QuantizeOptions& options) {
  json root = json::object();
  if (!config.empty()) {
    MOEKIT_ASSIGN_OR_RETURN(root, parse_json(wrap_python_literals(config)));
    if (!root.is_object()) {
      return invalid_argument("config.json is not a JSON object");
    }
  }
  if (options.naming == QuantizedNaming::kModelopt) {
    root["quantization_config"] = modelopt_section(options, "ignore");
    root["quantization_config"]["quant_method"] = "modelopt";
  } else {
    root["quantization_config"] = compressed_section(options);
  }
  return root.dump(2) + "\n";
}

std::string quantized_hf_config(const QuantizeOptions& options) {
  if (options.naming != QuantizedNaming::kModelopt) {
    return {};
  }
  const json root{{"producer", {{"name", "moekit"}}},
                  {"quantization", modelopt_section(options, "exclude_modules")}};
  return root.dump(2) + "\n";
}

}  // namespace moekit::checkpoint
