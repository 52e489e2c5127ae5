// SPDX-License-Identifier: Apache-2.0
// Plans a layer and reads the plan back from its JSON: links the library and calls across its
// border.

#include <cstdio>
#include <moekit/moekit.h>

int main() {
  const moekit::Problem problem{.num_tokens = 8,
                                .num_experts = 16,
                                .top_k = 2,
                                .hidden_size = 256,
                                .intermediate_size = 128,
                                .recipe = moekit::Recipe::kW4a16Mxfp4};
  const auto plan = moekit::make_plan(problem, moekit::host_cpu());
  if (!plan) {
    std::fprintf(stderr, "%s\n", plan.status().to_string().c_str());
    return 1;
  }
  const auto read_back = moekit::Plan::from_json(*plan->to_json(1));
  if (!read_back || !(*read_back == *plan)) {
    std::fprintf(stderr, "the plan does not survive its JSON\n");
    return 1;
  }
  std::printf("%s", plan->to_text(1)->c_str());
  return 0;
}
