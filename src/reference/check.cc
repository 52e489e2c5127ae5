// SPDX-License-Identifier: Apache-2.0
#include "reference/check.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/text.h"
#include "reference/small_floats.h"

namespace moekit::reference {
namespace {

// Values of the intermediate that one batch of tokens may hold: bounds the oracle's memory to about
// 100 MiB whatever the call.
constexpr std::int64_t kBatchValues = std::int64_t{3} << 20;

// Sums behind the report's figures.
struct Tally {
  VerifyReport report{};
  std::int64_t differing_off_ties = 0;
  double squared_error = 0.0;
  double dot = 0.0;
  double squared_expected = 0.0;
  double squared_actual = 0.0;
  double squared_end_to_end = 0.0;
  double squared_end_to_end_expected = 0.0;
};

void note_failure(Tally& tally, const std::string& text) {
  if (tally.report.first_failure.empty()) {
    tally.report.first_failure = text;
  }
}

bool is_materialised(const Evidence& evidence, std::int64_t token) {
  return evidence.intermediate != nullptr && token >= evidence.first_token;
}

Quantizer call_quantizer(const LayerCall& call) {
  return recipe_info(call.problem.recipe).quantizer;
}

enum class Judgement : std::uint8_t { kJudged, kOverwritten, kOutOfRange };

// A quantiser turns one intermediate that rounds the other way into another scale of its group, so
// without the implementation's own intermediate there is no bound worth the name: such tokens are
// not judged (their chunk has left the slice; those of the last chunk are). What the row of a token
// without active routes or with a non-finite x holds depends on no intermediate.
Judgement judgement(const LayerCall& call, const Evidence& evidence, const BatchToken& token) {
  if (!token.active || !token.finite) {
    return Judgement::kJudged;
  }
  if (!token.in_range) {
    return Judgement::kOutOfRange;
  }
  return call_quantizer(call) == Quantizer::kNone || is_materialised(evidence, token.token)
             ? Judgement::kJudged
             : Judgement::kOverwritten;
}

void count_token(const BatchToken& token, Judgement judged, VerifyReport& report) {
  report.tokens_checked += judged == Judgement::kJudged ? 1 : 0;
  report.tokens_overwritten += judged == Judgement::kOverwritten ? 1 : 0;
  report.tokens_out_of_range += judged == Judgement::kOutOfRange ? 1 : 0;
  report.tokens_inactive += token.active ? 0 : 1;
  report.tokens_not_finite += token.active && !token.finite ? 1 : 0;
}

// In f32 the value stands exactly between two bf16 neighbours.
bool is_f32_tie(double exact) {
  constexpr FloatShape kHalfway{
      kBf16Shape.precision + 1, kBf16Shape.min_quantum - 1, kBf16Shape.largest};
  const double value = round_to(kF32Shape, exact);
  return value == round_to(kHalfway, value) && value != round_to(kBf16Shape, value);
}

// Stage 1. The oracle has a = activation(g, u) in double, the implementation a' with |a' - a| <= E:
// E carries FC1's accumulation error 4 eps sqrt(K) sum|x w| through the activation's derivative and
// adds its evaluation error (project() in layer.cc and activation_error()). Rounding is monotone,
// so RNE(a') lies in [RNE(a - E), RNE(a + E)]. Where that interval is one value the implementation
// must return it; where it is not, a rounding tie lies within E of a and any value in the interval
// is right. This is "differing, but within FC1's running error of a rounding tie".
void check_intermediate(const LayerCall& call,
                        const Evidence& evidence,
                        BatchRoute& route,
                        Tally& tally) {
  const std::int64_t size = call.problem.intermediate_size;
  const auto* row =
      static_cast<const unsigned char*>(evidence.intermediate) +
      ((route.route.token - evidence.first_token) * call.problem.top_k + route.route.slot) * size *
          2;
  for (std::int64_t i = 0; i < size; ++i) {
    std::uint16_t code = 0;
    std::memcpy(&code, row + i * 2, sizeof code);
    const double actual = bf16_value(code);
    const double expected = route.a[index_of(i)];
    ++tally.report.intermediates_checked;
    if (actual == expected) {
      continue;
    }
    ++tally.report.intermediates_differing;
    const double exact = route.exact[index_of(i)];
    const double error = route.error[index_of(i)];
    tally.differing_off_ties += is_f32_tie(exact) ? 0 : 1;
    if (!(actual >= round_to(kBf16Shape, exact - error) &&
          actual <= round_to(kBf16Shape, exact + error))) {
      ++tally.report.intermediates_out_of_bound;
      note_failure(tally,
                   base::cat("intermediate of token ",
                             route.route.token,
                             " slot ",
                             route.route.slot,
                             " expert ",
                             route.route.expert,
                             " at ",
                             i,
                             ": got ",
                             actual,
                             ", expected ",
                             exact,
                             " within ",
                             error,
                             ", then rounded to bf16"));
    }
    route.a[index_of(i)] = actual;
    if (call_quantizer(call) == Quantizer::kNone) {
      route.deltas.push_back({i, expected - actual});
    }
  }
}

// Without an intermediate to look at, every value whose interval is not a single one may be off by
// the interval's width.
void assume_intermediate(const LayerCall& call, BatchRoute& route) {
  for (std::int64_t i = 0; i < call.problem.intermediate_size; ++i) {
    const double exact = route.exact[index_of(i)];
    const double error = route.error[index_of(i)];
    const double low = round_to(kBf16Shape, exact - error);
    const double high = round_to(kBf16Shape, exact + error);
    const double rounded = route.a[index_of(i)];
    if (low != high) {
      route.deltas.push_back({i, std::max(high - rounded, rounded - low)});
    }
  }
}

struct OutputRow {
  const LayerCall& call;
  const Evidence& evidence;
  const BatchToken& token;
  const Outputs& outputs;
  std::size_t first = 0;  // of the row in outputs
};

// The rounding of the store: one unit in the last place of the io dtype covers the half unit of the
// rounding itself and what the sum before it was off by near a tie. For bf16 this is 2^-8 |y|, as
// spec section 2 writes it; the same reasoning gives 2^-11 |y| for f16 and 2^-23 |y| for f32.
double store_error(DType io_dtype, double value) {
  const FloatShape& shape = float_shape(io_dtype);
  return std::fabs(value) * power_of_two(-shape.precision + (io_dtype == DType::kF32 ? 1 : 0)) +
         power_of_two(shape.min_quantum);
}

// Stage 2: |out - y| <= store error + 4 eps sqrt(I top_k) sum|terms| + flush, y = FC2 of the
// implementation's own intermediate. Where that was not materialised, y = FC2 of the oracle's, and
// sum|p G2 w2 delta| joins the bound for the values that may have rounded the other way.
double output_bound(const OutputRow& row, std::size_t at) {
  const Problem& problem = row.call.problem;
  const double length = static_cast<double>(problem.intermediate_size * problem.top_k);
  double bound =
      store_error(output_dtype(problem), row.outputs.value[at]) +
      4.0 * row.call.accumulator_epsilon * std::sqrt(length) * row.outputs.magnitude[at] +
      row.outputs.flush[at];
  if (!is_materialised(row.evidence, row.token.token)) {
    bound += row.outputs.delta_magnitude[at];
  }
  return bound;
}

double load_output(const OutputRow& row, std::int64_t column) {
  const MutableTensorView& out = row.evidence.out;
  return load_value(
      out.data, out.dtype, row.token.token * out.strides[0] + column * out.strides[1]);
}

void note_output(const OutputRow& row, std::int64_t column, double bound, Tally& tally) {
  ++tally.report.outputs_out_of_bound;
  note_failure(tally,
               base::cat("output of token ",
                         row.token.token,
                         " at ",
                         column,
                         ": got ",
                         load_output(row, column),
                         ", expected ",
                         row.outputs.value[row.first + index_of(column)],
                         " within ",
                         bound));
}

void add_figures(const OutputRow& row, std::size_t at, double actual, Tally& tally) {
  const double expected = row.outputs.value[at];
  const double error = std::fabs(actual - expected);
  tally.report.max_abs_error = std::max(tally.report.max_abs_error, error);
  tally.squared_error += error * error;
  tally.dot += actual * expected;
  tally.squared_expected += expected * expected;
  tally.squared_actual += actual * actual;
  // With an implementation's intermediate in `value`, delta leads from it to the oracle's.
  const double end_to_end =
      is_materialised(row.evidence, row.token.token) ? expected + row.outputs.delta[at] : expected;
  tally.squared_end_to_end += (actual - end_to_end) * (actual - end_to_end);
  tally.squared_end_to_end_expected += end_to_end * end_to_end;
}

void check_element(const OutputRow& row, std::int64_t column, Tally& tally) {
  const std::size_t at = row.first + index_of(column);
  const double expected = row.outputs.value[at];
  const double actual = load_output(row, column);
  ++tally.report.outputs_checked;
  if (!std::isfinite(expected)) {  // a shared input that holds NaN or infinity
    if (std::isnan(expected) ? !std::isnan(actual) : actual != expected) {
      note_output(row, column, 0.0, tally);
    }
    return;
  }
  const double bound = output_bound(row, at);
  if (std::isinf(actual) &&
      std::fabs(expected) + bound > float_shape(row.evidence.out.dtype).largest &&
      std::signbit(actual) == std::signbit(expected)) {
    return;  // rounds beyond the io dtype's largest value
  }
  if (!(std::fabs(actual - expected) <= bound)) {
    note_output(row, column, bound, tally);
  }
  if (std::isfinite(actual)) {
    tally.report.max_bound_fraction =
        std::max(tally.report.max_bound_fraction, std::fabs(actual - expected) / bound);
    add_figures(row, at, actual, tally);
  }
}

// A token without active routes: exactly `shared` rounded once, or exactly 0.
void check_inactive(const OutputRow& row, std::int64_t column, Tally& tally) {
  const double value = row.outputs.value[row.first + index_of(column)];
  const double expected = round_to(float_shape(row.evidence.out.dtype), value);
  const double actual = load_output(row, column);
  ++tally.report.outputs_checked;
  if (!(actual == expected || (std::isnan(actual) && std::isnan(expected)))) {
    note_output(row, column, 0.0, tally);
  }
}

void check_output_row(const OutputRow& row, Tally& tally) {
  for (std::int64_t column = 0; column < row.call.problem.hidden_size; ++column) {
    if (!row.token.active) {
      check_inactive(row, column, tally);
    } else if (row.token.finite) {
      check_element(row, column, tally);
    } else {
      ++tally.report.outputs_checked;
      if (!std::isnan(load_output(row, column))) {
        note_output(row, column, 0.0, tally);
      }
    }
  }
}

void check_batch(const LayerCall& call,
                 const Evidence& evidence,
                 const std::vector<std::int64_t>& tokens,
                 Tally& tally) {
  Batch batch = make_batch(call, tokens);
  evaluate_gate_up(call, batch);
  for (BatchRoute& route : batch.routes) {
    const BatchToken& token = batch.tokens[index_of(route.token_idx)];
    if (!token.finite || judgement(call, evidence, token) != Judgement::kJudged) {
      continue;
    }
    ++tally.report.routes_checked;
    if (is_materialised(evidence, token.token)) {
      check_intermediate(call, evidence, route, tally);
    } else {
      assume_intermediate(call, route);
    }
  }
  const Outputs outputs = evaluate_down(call, batch);
  for (std::size_t t = 0; t < batch.tokens.size(); ++t) {
    const Judgement judged = judgement(call, evidence, batch.tokens[t]);
    count_token(batch.tokens[t], judged, tally.report);
    if (judged == Judgement::kJudged) {
      check_output_row(
          {call, evidence, batch.tokens[t], outputs, t * index_of(call.problem.hidden_size)},
          tally);
    }
  }
}

// A check that looked at nothing has proved nothing.
void refuse_empty(std::int64_t num_tokens, Tally& tally) {
  const VerifyReport& report = tally.report;
  if (num_tokens > 0 && report.tokens_checked == 0) {
    note_failure(tally,
                 base::cat("none of ",
                           num_tokens,
                           " tokens could be checked: ",
                           report.tokens_out_of_range,
                           " whose sums may leave the range of f32, ",
                           report.tokens_overwritten,
                           " whose intermediate later chunks overwrote, ",
                           report.tokens_not_sampled,
                           " not sampled"));
  }
}

void finish(Quantizer quantizer, Tally& tally) {
  VerifyReport& report = tally.report;
  const double count = static_cast<double>(std::max<std::int64_t>(report.outputs_checked, 1));
  report.rms_error = std::sqrt(tally.squared_error / count);
  const double norms = std::sqrt(tally.squared_expected * tally.squared_actual);
  report.cosine = norms > 0.0 ? tally.dot / norms
                              : (tally.squared_expected == tally.squared_actual ? 1.0 : 0.0);
  report.end_to_end_relative_l2 =
      tally.squared_end_to_end_expected > 0.0
          ? std::sqrt(tally.squared_end_to_end / tally.squared_end_to_end_expected)
          : std::sqrt(tally.squared_end_to_end);
  const double checked = static_cast<double>(report.intermediates_checked);
  const double differing = static_cast<double>(tally.differing_off_ties);
  const double limit = quantizer == Quantizer::kNone ? kShareLimit : kQuantizedShareLimit;
  const bool too_many =
      report.intermediates_checked >= kShareMinimum && differing > limit * checked;
  if (too_many) {
    note_failure(tally,
                 base::cat(tally.differing_off_ties,
                           " of ",
                           report.intermediates_checked,
                           " intermediates differ from the oracle's, more than ",
                           limit * 100.0,
                           " %"));
  }
  report.passed = report.first_failure.empty();
}

}  // namespace

std::vector<std::int64_t> sample_tokens(std::int64_t num_tokens, std::int64_t first_token) {
  std::vector<std::int64_t> tokens;
  const auto add_evenly = [&tokens](std::int64_t begin, std::int64_t end, std::int64_t count) {
    const std::int64_t size = end - begin;
    count = std::min(count, size);
    for (std::int64_t i = 0; i < count; ++i) {
      tokens.push_back(count == 1 ? begin : begin + i * (size - 1) / (count - 1));
    }
  };
  const std::int64_t late = num_tokens - std::min(first_token, num_tokens);
  const std::int64_t from_late =
      first_token <= 0 ? kSampledTokens
                       : std::min(late, std::max(kSampledTokens / 2, kSampledTokens - first_token));
  add_evenly(0, num_tokens - late, kSampledTokens - from_late);
  add_evenly(num_tokens - late, num_tokens, from_late);
  return tokens;
}

VerifyReport check_layer(const LayerCall& call, const Evidence& evidence) {
  Tally tally;
  const std::vector<std::int64_t> tokens = sample_tokens(evidence.num_tokens, evidence.first_token);
  const std::int64_t values_per_token =
      call.problem.top_k * std::max(call.problem.intermediate_size, call.problem.hidden_size);
  const std::int64_t batch_tokens = std::max<std::int64_t>(1, kBatchValues / values_per_token);
  for (std::size_t begin = 0; begin < tokens.size(); begin += index_of(batch_tokens)) {
    const std::size_t end = std::min(tokens.size(), begin + index_of(batch_tokens));
    check_batch(call,
                evidence,
                {tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                 tokens.begin() + static_cast<std::ptrdiff_t>(end)},
                tally);
  }
  tally.report.tokens_not_sampled = evidence.num_tokens - static_cast<std::int64_t>(tokens.size());
  refuse_empty(evidence.num_tokens, tally);
  finish(call_quantizer(call), tally);
  return std::move(tally.report);
}

}  // namespace moekit::reference
