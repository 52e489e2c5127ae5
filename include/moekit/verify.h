// SPDX-License-Identifier: Apache-2.0
#pragma once

// The float64 oracle and the two-stage check of spec section 2: anybody can prove what a layer
// computed.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moekit/experts.h"
#include "moekit/plan.h"
#include "moekit/runtime.h"
#include "moekit/status.h"

#pragma GCC visibility push(default)

namespace moekit {

/// Outcome of one check of one layer call.
struct VerifyReport {
  bool passed = false;
  /// All of them up to 64, then 64 sampled, but for those of the next three counts.
  std::int64_t tokens_checked = 0;
  std::int64_t tokens_not_sampled = 0;
  /// With a quantising recipe, tokens of chunks before the last are left out: their intermediate
  /// has left the workspace, and one that rounds the other way changes the scale of its group, so
  /// that no bound on the output would mean anything.
  std::int64_t tokens_overwritten = 0;
  /// A sum may leave the range of f32: whether it does depends on the order of its terms.
  std::int64_t tokens_out_of_range = 0;
  // Of tokens_checked: those with a NaN or infinite x, whose rows must be NaN, and those without an
  // active route, whose rows must be exactly 0 (or `shared`).
  std::int64_t tokens_not_finite = 0;
  std::int64_t tokens_inactive = 0;
  std::int64_t routes_checked = 0;
  // Stage 1: the intermediate against RNE(oracle)
  std::int64_t intermediates_checked = 0;
  std::int64_t intermediates_differing = 0;
  std::int64_t intermediates_out_of_bound =
      0;  // differ and are not within FC1's error of a rounding tie
  // Stage 2: the output against the oracle's FC2 of the implementation's own intermediate
  std::int64_t outputs_checked = 0;
  std::int64_t outputs_out_of_bound = 0;
  double max_abs_error = 0.0;
  double rms_error = 0.0;
  double max_bound_fraction = 0.0;  // largest error / bound
  double cosine = 0.0;
  double end_to_end_relative_l2 =
      0.0;                      // against the oracle without the implementation's intermediate
  std::string first_failure{};  // values and place of the first violated bound
};

/// Runs the oracle on what `run` just computed. `workspace` is the buffer bound to that run,
/// unchanged since; it and the tensors are host memory (run_host_tensors brings a GPU's back). A
/// bound that is violated is no error: the report says `passed` false.
///
/// Errors  kInvalidArgument  arguments that bind would refuse
[[nodiscard]] Result<VerifyReport> verify_call(const Plan& plan,
                                               const ExpertsSource& source,
                                               const RunArguments& arguments,
                                               std::span<const std::byte> workspace) noexcept;

/// One generated case of `moekit verify`: a problem, a token count, a seed, and what is unusual
/// about it.
struct VerifyCase {
  Problem problem{};
  std::int64_t num_tokens = 0;
  std::uint64_t seed = 1;
  std::string
      quirk{};  // `none`, `inactive_ids`, `duplicate_ids`, `int64_ids`, `all_to_one_expert`, …
  PlanOverrides overrides{};
};

/// `recipe=… h=… i=… e=… k=… m=… seed=… quirk=…`: parse_verify_case reads it back, so that a failed
/// check prints the line that reproduces it.
[[nodiscard]] Result<std::string> verify_case_line(const VerifyCase& verify_case) noexcept;
[[nodiscard]] Result<VerifyCase> parse_verify_case(std::string_view line) noexcept;

enum class VerifySuite : std::uint8_t { kQuick, kFull };

/// Pairwise covering array over recipes, activations, orders, shapes and token counts; quick is a
/// subset that runs within a minute. Every I, E and top-k of the published model table occurs in
/// kFull.
[[nodiscard]] Result<std::vector<VerifyCase>> verify_suite(VerifySuite suite) noexcept;

/// Makes weights and inputs from the seed, plans, prepares, runs twice under two poisons, checks
/// guard bytes, input hashes and bit equality, then verify_call.
[[nodiscard]] Result<VerifyReport> run_verify_case(const Runtime& runtime,
                                                   const VerifyCase& verify_case,
                                                   const DeviceDescriptor& device) noexcept;

}  // namespace moekit

#pragma GCC visibility pop
