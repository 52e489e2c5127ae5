// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/quantization_claims.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string>
#include <string_view>

#include "base/text.h"
#include "checkpoint/json_text.h"

namespace moekit::checkpoint {
namespace {

using base::cat;

/// A word of quant_method, quant_algo or format and the format it means; without one it means a
/// quantisation that moekit has no format for.
struct ClaimedFormat {
  std::string_view word;
  std::optional<Format> format;
};

// ModelOpt's quant_algo names, compressed-tensors' format names, transformers' quant_method names.
// Words that are not listed (modelopt, compressed-tensors, auto-round, quark, MIXED_PRECISION)
// claim no one format.
constexpr std::array kClaimedFormats{
    ClaimedFormat{"nvfp4", Format::kNvfp4},
    ClaimedFormat{"nvfp4_awq", Format::kNvfp4},
    ClaimedFormat{"w4a16_nvfp4", Format::kNvfp4},
    ClaimedFormat{"w4a8_nvfp4_fp8", Format::kNvfp4},
    ClaimedFormat{"modelopt_fp4", Format::kNvfp4},
    ClaimedFormat{"nvfp4-pack-quantized", Format::kNvfp4},
    ClaimedFormat{"mxfp4", Format::kMxfp4},
    ClaimedFormat{"w4a16_mxfp4", Format::kMxfp4},
    ClaimedFormat{"w4a8_mxfp4_fp8", Format::kMxfp4},
    ClaimedFormat{"mxfp4-pack-quantized", Format::kMxfp4},
    ClaimedFormat{"fp8", Format::kFp8Block128},
    ClaimedFormat{"fp8_per_channel_per_token", std::nullopt},
    ClaimedFormat{"fp8_pb_wo", Format::kFp8Block128},
    ClaimedFormat{"fp8_pb_real", Format::kFp8Block128},
    ClaimedFormat{"fbgemm_fp8", std::nullopt},
    ClaimedFormat{"finegrained_fp8", Format::kFp8Block128},
    ClaimedFormat{"mxfp8", std::nullopt},
    ClaimedFormat{"float-quantized", Format::kFp8Block128},
    ClaimedFormat{"naive-quantized", std::nullopt},
    ClaimedFormat{"int-quantized", std::nullopt},
    ClaimedFormat{"pack-quantized", Format::kInt4},
    ClaimedFormat{"marlin-24", std::nullopt},
    ClaimedFormat{"int4_awq", Format::kInt4},
    ClaimedFormat{"w4a16_awq", Format::kInt4},
    ClaimedFormat{"w4a8_awq", std::nullopt},
    ClaimedFormat{"int8_sq", std::nullopt},
    ClaimedFormat{"w8a16", std::nullopt},
    ClaimedFormat{"w8a8_sq_per_channel", std::nullopt},
    ClaimedFormat{"awq", Format::kInt4},
    ClaimedFormat{"gptq", Format::kInt4},
    ClaimedFormat{"bitsandbytes", std::nullopt},
    ClaimedFormat{"exl3", std::nullopt},
    ClaimedFormat{"hqq", std::nullopt},
};

/// Shell-like matching: `*` stands for any text.
bool matches(std::string_view text, std::string_view pattern) {
  std::size_t t = 0;
  std::size_t p = 0;
  std::size_t star = std::string_view::npos;
  std::size_t resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

/// Whether an exclusion names the experts or a module around them. Regular expressions
/// (compressed-tensors' `re:`) are read by their words: one that names experts, shared ones apart,
/// counts.
bool excludes(std::string_view pattern, const std::string& experts) {
  if (pattern.starts_with("re:")) {
    return pattern.find("experts") != std::string_view::npos &&
           pattern.find("shared_expert") == std::string_view::npos;
  }
  return matches(cat(".", experts, "0.up_proj."), cat("*.", pattern, ".*"));
}

/// Elements along K that share a scale, as the first expert's tensors have it.
std::int64_t group_of(const LayerWeights& weights) {
  return weights.experts.empty() ? format_info(weights.format).group_size
                                 : scale_group_size(weights.experts.front().up);
}

Status contradicts(const LayerWeights& weights, std::string_view claim, const std::string& origin) {
  return invalid_argument(cat("experts ",
                              printable(weights.prefix),
                              " are ",
                              format_info(weights.format).name,
                              " with groups of ",
                              group_of(weights),
                              " in the tensors (",
                              weights.scheme,
                              "), ",
                              claim,
                              " in ",
                              origin));
}

Status check_word(const MaybeFact<std::string>& fact, const LayerWeights& weights) {
  if (!fact.has_value()) {
    return {};
  }
  std::string word = fact->value;
  std::transform(word.begin(), word.end(), word.begin(), [](unsigned char letter) {
    return static_cast<char>(std::tolower(letter));
  });
  for (const ClaimedFormat& claimed : kClaimedFormats) {
    if (claimed.word == word && claimed.format != weights.format) {
      return contradicts(weights, printable(fact->value), fact->origin);
    }
  }
  return {};
}

Status check_claim(const QuantizationClaim& claim, const LayerWeights& weights) {
  const bool excluded =
      std::any_of(claim.excluded.begin(), claim.excluded.end(), [&](const std::string& pattern) {
        return excludes(pattern, weights.prefix);
      });
  if (claim.mixed || excluded) {
    return {};
  }
  MOEKIT_RETURN_IF_ERROR(check_word(claim.method, weights));
  MOEKIT_RETURN_IF_ERROR(check_word(claim.algo, weights));
  MOEKIT_RETURN_IF_ERROR(check_word(claim.format, weights));
  if (claim.group_size.has_value() && claim.group_size->value != group_of(weights)) {
    return contradicts(
        weights, cat("group size ", claim.group_size->value), claim.group_size->origin);
  }
  return {};
}

}  // namespace

Status check_quantization(const ModelConfig& config, const LayerWeights& weights) {
  if (weights.format == Format::kBf16) {
    return {};
  }
  if (config.expert_dtype.has_value()) {
    // DeepSeek-V4: the quantisation section speaks of everything but the experts.
    const std::string& word = config.expert_dtype->value;
    const bool fits = (word == "fp4" && weights.format == Format::kMxfp4) ||
                      (word == "fp8" && weights.format == Format::kFp8Block128);
    return fits ? Status() : contradicts(weights, printable(word), config.expert_dtype->origin);
  }
  for (const QuantizationClaim& claim : config.quantization_claims) {
    MOEKIT_RETURN_IF_ERROR(check_claim(claim, weights));
  }
  return {};
}

}  // namespace moekit::checkpoint
