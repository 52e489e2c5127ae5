// SPDX-License-Identifier: Apache-2.0
// The words of the command line: verbs, options, help.
#include "cli/command_line.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/build_facts.h"
#include "cli/option_parser.h"
#include "cli/options.h"
#include "cli/verbs.h"

namespace moekit::cli {
namespace {

using Rows = std::vector<OptionRow>;

constexpr std::int64_t kMaxThreads = 1024;
constexpr const char* kCheckpointHelp = "a .safetensors or .gguf file or a Hugging Face folder";

Rows join(std::initializer_list<Rows> groups) {
  Rows all;
  for (const Rows& group : groups) {
    all.insert(all.end(), group.begin(), group.end());
  }
  return all;
}

// Groups that verbs share.

Rows checkpoint_rows(LayerOptions& o, bool required = false) {
  return {{"--checkpoint", "PATH", kCheckpointHelp, &o.checkpoint, required},
          {"--layer", "N", "MoE layer of the checkpoint", &o.layer}};
}

Rows shape_rows(LayerOptions& o) {
  return {{"--preset", "NAME", "a built-in shape, see bench/presets", &o.preset},
          {"--experts", "E", "number of experts", &o.experts},
          {"--top-k", "T", "experts per token", &o.top_k},
          {"--hidden", "H", "hidden size", &o.hidden},
          {"--intermediate", "I", "intermediate size of one expert", &o.intermediate}};
}

/// What is computed.
Rows semantics_rows(LayerOptions& o) {
  return {{"--recipe", "R", "what numbers are computed, e.g. w4a16_nvfp4", &o.recipe},
          {"--activation", "A", "silu, swiglu_oai, situ, gelu_tanh or relu2", &o.activation},
          {"--limit", "L", "clamp of silu and swiglu_oai", &o.limit},
          {"--alpha", "X", "alpha of swiglu_oai", &o.alpha},
          {"--beta", "X", "beta of swiglu_oai", &o.beta},
          {"--row-order", "ORDER", "gate_up, up_gate or interleaved", &o.row_order},
          {"--bias", "", "gate_up and down have biases", &o.bias},
          {"--routed-scaling", "X", "factor of the routed sum", &o.routed_scaling},
          {"--router-weight-on-input",
           "",
           "router weights multiply x, not the sum",
           &o.router_weight_on_input},
          {"--io-dtype", "D", "bf16, f16 or f32", &o.io_dtype}};
}

/// Which rank's part of it.
Rows shard_rows(LayerOptions& o) {
  return {{"--tp",
           "RANK/SIZE",
           "plan the part of a layer that is split by columns of the intermediate",
           &o.tp},
          {"--ep", "RANK/SIZE", "plan the part of a layer that is split by experts", &o.ep}};
}

/// Device, plan properties, pins, threads, and the report's form.
Rows execution_rows(LayerOptions& o) {
  return {
      {"--device",
       "D",
       "cpu, cpu:avx2, cuda[:i], sm_90a, sm_120a:num_sms=94, ... (default cpu)",
       &o.device},
      {"--allow-atomics", "", "allow a combine whose order may vary", &o.allow_atomics},
      {"--batch-invariant", "", "a token's row depends on that token alone", &o.batch_invariant},
      {"--max-workspace", "BYTES", "cut large M into chunks that fit", &o.max_workspace},
      {"--pin",
       "KEY[=VALUE]",
       "family=direct|grouped, route_block_rows=N, tile=NAME, resident, pdl_first",
       &o.pins},
      {"--threads", "N", "threads of the CPU backend (default all)", &o.threads},
      {"--json", "", "report as JSON", &o.json}};
}

/// A list of token counts; the last mention counts, so that a reproducing line can append its own.
OptionRow token_list(std::string& tokens, const char* help) {
  return {"--tokens", "M[,M...]", help, &tokens, false, Mentions::kLastCounts};
}

OptionRow seed_row(std::uint64_t& seed) {
  return {"--seed",
          "N",
          "of random weights and inputs (default 1)",
          &seed,
          false,
          Mentions::kLastCounts};
}

OptionRow json_row(bool& json) {
  return {"--json", "", "report as JSON", &json};
}

template <typename Threads>
OptionRow threads_row(Threads& threads, const char* help) {
  OptionRow row{"--threads", "N", help, &threads};
  row.minimum = 1;
  row.maximum = kMaxThreads;
  return row;
}

OptionRow one_of(OptionRow row, const char* words) {
  row.words = words;
  return row;
}

OptionRow comma_list(OptionRow row) {
  row.comma_list = true;
  return row;
}

// What each verb offers.

Rows rows_of(DevicesOptions& o) {
  return {json_row(o.json)};
}

Rows rows_of(InspectOptions& o) {
  return {{"checkpoint", "CHECKPOINT", kCheckpointHelp, &o.checkpoint, true},
          {"--layer", "N", "MoE layer to describe (default: the first)", &o.layer},
          json_row(o.json)};
}

Rows rows_of(PlanOptions& o) {
  return join({checkpoint_rows(o.layer),
               shape_rows(o.layer),
               semantics_rows(o.layer),
               shard_rows(o.layer),
               execution_rows(o.layer),
               {{"--tokens", "M", "capacity, and the token count to explain", &o.tokens},
                {"--matrix", "", "recipes, devices, activations: status or refusal", &o.matrix}}});
}

Rows rows_of(RunOptions& o) {
  return join(
      {checkpoint_rows(o.layer, true),
       semantics_rows(o.layer),
       execution_rows(o.layer),
       {{"--input",
         "IN.safetensors",
         "hidden_states, and topk_ids with topk_weights, or router_logits, or neither; token_ids "
         "where the layer selects by token id",
         &o.input,
         true},
        {"--output", "OUT.safetensors", "where the output is written", &o.output, true},
        {"--check", "", "compare with the float64 oracle; exit 1 on failure", &o.check}}});
}

Rows rows_of(VerifyOptions& o) {
  return join({checkpoint_rows(o.layer),
               shape_rows(o.layer),
               semantics_rows(o.layer),
               execution_rows(o.layer),
               {token_list(o.tokens, "token counts of a SUBJECT (default 1,2,7,8,33)"),
                {"--suite", "NAME", "quick or full (default quick without a SUBJECT)", &o.suite},
                {"--case", "LINE", "one case, as a failure prints it", &o.case_line},
                seed_row(o.seed),
                {"--jobs", "N", "cases checked at a time (default: one per core)", &o.jobs}}});
}

Rows rows_of(BenchOptions& o) {
  return join({checkpoint_rows(o.layer),
               shape_rows(o.layer),
               semantics_rows(o.layer),
               execution_rows(o.layer),
               {token_list(o.tokens, "token counts (default 1,8,64)"),
                {"--seconds", "S", "time spent on each token count (default 2)", &o.seconds},
                comma_list({"--isa",
                            "ISA[,ISA...]",
                            "CPU bodies that take turns: amx, avx512, avx2, portable",
                            &o.isas}),
                {"--on-request",
                 "",
                 "time calls when the standard input asks for them, see bench/compare",
                 &o.on_request},
                seed_row(o.seed)}});
}

Rows rows_of(KernelsOptions& o) {
  return {one_of({"action", "ACTION", "build, list, verify, prune or clear", &o.action, true},
                 "build|list|verify|prune|clear"),
          {"folder",
           "DIR",
           "list, verify: default the bundle and the cache; prune, clear: the cache",
           &o.folder},
          comma_list({"--arch", "A[,A...]", "of build: sm_80, sm_90a, ...", &o.archs}),
          {"--output", "DIR", "of build: the bundle's folder", &o.output},
          threads_row(o.threads, "of build: compilers at a time (default all)"),
          json_row(o.json)};
}

Rows rows_of(QuantizeVerbOptions& o) {
  return {{"source", "SOURCE", "a .safetensors file or a Hugging Face folder", &o.source, true},
          one_of({"--format", "F", "nvfp4 or mxfp4", &o.format, true}, "nvfp4|mxfp4"),
          {"--output", "DIR", "folder; an interrupted one is continued", &o.output, true},
          one_of({"--naming", "NAME", "modelopt (default) or compressed-tensors", &o.naming},
                 "modelopt|compressed-tensors"),
          threads_row(o.threads, "matrices at a time (default all)"),
          json_row(o.json)};
}

/// The verbs, and for each what runs it once its options are read.
struct Verbs {
  std::vector<VerbRow> rows{};
  std::vector<std::function<ChosenVerb(const ParsedLine&, std::string command_line)>> bind{};
};

template <typename Options>
void add_verb(Verbs& verbs,
              const char* name,
              const char* description,
              Result<ExitCode> (*verb)(Console&, const Options&)) {
  auto options = std::make_shared<Options>();
  verbs.rows.push_back({name, description, rows_of(*options)});
  verbs.bind.emplace_back([options, verb](const ParsedLine& line, std::string command_line) {
    if constexpr (requires { options->command_line; }) {
      options->command_line = std::move(command_line);
    }
    if constexpr (requires { options->given; }) {
      options->given = line.given;
    }
    return [options, verb](Console& console) { return verb(console, *options); };
  });
}

Verbs all_verbs() {
  Verbs verbs;
  add_verb(verbs, "devices", "List the CPU and the CUDA devices", devices_verb);
  add_verb(verbs,
           "inspect",
           "Say what a checkpoint holds, what was inferred from where, what was ignored",
           inspect_verb);
  add_verb(verbs, "plan", "Show how a layer runs: kernels, workspace, refusals", plan_verb);
  add_verb(verbs, "run", "Run one layer of a checkpoint on the tensors of a file", run_verb);
  add_verb(
      verbs, "verify", "Compare a layer, a case or a suite with the float64 oracle", verify_verb);
  add_verb(
      verbs, "bench", "Check a layer, then time it beside a linear read of memory", bench_verb);
  add_verb(verbs,
           "kernels",
           "Compile CUDA kernels ahead of time; look after bundles and caches of them",
           kernels_verb);
  add_verb(verbs,
           "quantize",
           "Write a BF16 checkpoint again with its routed experts in four bits",
           quantize_verb);
  return verbs;
}

/// CLI11 would say that a subcommand is missing, whatever stands in its place.
Status check_verb(const std::vector<VerbRow>& verbs, const std::vector<std::string>& words) {
  const std::string given = words.empty() ? "" : words.front();
  std::string known;
  for (const VerbRow& verb : verbs) {
    if (given == verb.name) {
      return {};
    }
    known += (known.empty() ? "" : ", ") + std::string(verb.name);
  }
  if (given.empty()) {
    return invalid_argument("no verb, expected one of " + known);
  }
  if (given.front() != '-') {
    return invalid_argument(given + ": unknown verb, expected one of " + known);
  }
  const bool without_verb = given == "--version" || given == "--help" || given == "-h";
  return without_verb ? Status()
                      : invalid_argument(given +
                                         ": unknown option before the verb, expected one of "
                                         "--version, --help, -h or a verb");
}

/// The command line as one string that a POSIX shell reads back.
std::string quoted_command_line(const std::vector<std::string>& words) {
  std::string line = "moekit";
  for (const std::string& word : words) {
    const bool plain =
        !word.empty() && word.find_first_of(" \t\n'\"\\$&|;<>()*?[]#~`!{}") == std::string::npos;
    line += ' ';
    if (plain) {
      line += word;
      continue;
    }
    line += '\'';
    for (const char c : word) {
      line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    }
    line += '\'';
  }
  return line;
}

}  // namespace

Result<ChosenVerb> parse_command_line(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + std::max(argc, 1));
  const Verbs verbs = all_verbs();
  MOEKIT_RETURN_IF_ERROR(check_verb(verbs.rows, words));
  const ProgramRow program{
      "moekit",
      "One fused Mixture-of-Experts layer from a low-bit checkpoint",
      "moekit " + std::string(build_version()) + " (" + std::string(build_commit()) + ")"};
  MOEKIT_ASSIGN_OR_RETURN(ParsedLine line, parse_options(program, verbs.rows, words));
  if (!line.text.empty()) {
    return ChosenVerb([text = std::move(line.text)](Console& console) -> Result<ExitCode> {
      console.report(text);
      return ExitCode::kOk;
    });
  }
  return verbs.bind[line.verb](line, quoted_command_line(words));
}

}  // namespace moekit::cli
