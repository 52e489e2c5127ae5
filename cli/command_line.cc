// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/build_facts.h"
#include "cli/options.h"
#include "cli/verbs.h"

namespace moekit::cli {
namespace {

/// Which rows of the table a verb offers.
enum class OptionGroup : std::uint8_t {
  kCheckpoint,  // --checkpoint, --layer
  kShape,       // --preset, or the four extents
  kSemantics,   // what is computed
  kShard,       // which rank's part of it
  kExecution,   // device, plan properties, pins, threads
  kReport,      // --json
};

struct OptionRow {
  OptionGroup group;
  const char* name;
  const char* value;  // what stands for the value in --help; empty for a flag
  const char* help;
  CLI::Option* (*add)(CLI::App&, const OptionRow&, LayerOptions&);
};

/// CLI11 reads 010 as octal and wraps a negative number into an unsigned one.
CLI::Validator natural_number() {
  return {[](std::string& text) {
            const bool digits =
                !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
            if (!digits || (text != "0" && text.front() == '0')) {
              return fmt::format("{} is no decimal number from 0", text);
            }
            std::int64_t value = 0;  // CLI11 would take the largest number there is
            return std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc()
                       ? std::string()
                       : fmt::format(
                             "{} is above {}", text, std::numeric_limits<std::int64_t>::max());
          },
          ""};
}

template <auto Member>
CLI::Option* value_of(CLI::App& app, const OptionRow& row, LayerOptions& options) {
  CLI::Option* option = app.add_option(row.name, options.*Member, row.help)->option_text(row.value);
  if constexpr (std::is_integral_v<
                    typename std::remove_cvref_t<decltype(options.*Member)>::value_type>) {
    option->check(natural_number());
  }
  return option;
}

template <auto Member>
CLI::Option* repeated(CLI::App& app, const OptionRow& row, LayerOptions& options) {
  // One value per mention, so that `--pin resident --json` does not swallow what follows.
  return app.add_option(row.name, options.*Member, row.help)
      ->option_text(row.value)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

template <auto Member>
CLI::Option* flag(CLI::App& app, const OptionRow& row, LayerOptions& options) {
  return app.add_flag(row.name, options.*Member, row.help);
}

using enum OptionGroup;
using L = LayerOptions;

constexpr std::array kOptionRows{
    OptionRow{kCheckpoint,
              "--checkpoint",
              "PATH",
              "a .safetensors or .gguf file or a Hugging Face folder",
              value_of<&L::checkpoint>},
    OptionRow{kCheckpoint, "--layer", "N", "MoE layer of the checkpoint", value_of<&L::layer>},
    OptionRow{
        kShape, "--preset", "NAME", "a built-in shape, see bench/presets", value_of<&L::preset>},
    OptionRow{kShape, "--experts", "E", "number of experts", value_of<&L::experts>},
    OptionRow{kShape, "--top-k", "T", "experts per token", value_of<&L::top_k>},
    OptionRow{kShape, "--hidden", "H", "hidden size", value_of<&L::hidden>},
    OptionRow{kShape,
              "--intermediate",
              "I",
              "intermediate size of one expert",
              value_of<&L::intermediate>},
    OptionRow{kSemantics,
              "--recipe",
              "R",
              "what numbers are computed, e.g. w4a16_nvfp4",
              value_of<&L::recipe>},
    OptionRow{kSemantics,
              "--activation",
              "A",
              "silu, swiglu_oai, situ, gelu_tanh or relu2",
              value_of<&L::activation>},
    OptionRow{kSemantics, "--limit", "L", "clamp of silu and swiglu_oai", value_of<&L::limit>},
    OptionRow{kSemantics, "--alpha", "X", "alpha of swiglu_oai", value_of<&L::alpha>},
    OptionRow{kSemantics, "--beta", "X", "beta of swiglu_oai", value_of<&L::beta>},
    OptionRow{kSemantics,
              "--row-order",
              "ORDER",
              "gate_up, up_gate or interleaved",
              value_of<&L::row_order>},
    OptionRow{kSemantics, "--bias", "", "gate_up and down have biases", flag<&L::bias>},
    OptionRow{kSemantics,
              "--routed-scaling",
              "X",
              "factor of the routed sum",
              value_of<&L::routed_scaling>},
    OptionRow{kSemantics,
              "--router-weight-on-input",
              "",
              "router weights multiply x, not the sum",
              flag<&L::router_weight_on_input>},
    OptionRow{kSemantics, "--io-dtype", "D", "bf16, f16 or f32", value_of<&L::io_dtype>},
    OptionRow{kShard,
              "--tp",
              "RANK/SIZE",
              "plan the part of a layer that is split by columns of the intermediate",
              value_of<&L::tp>},
    OptionRow{kShard,
              "--ep",
              "RANK/SIZE",
              "plan the part of a layer that is split by experts",
              value_of<&L::ep>},
    OptionRow{kExecution,
              "--device",
              "D",
              "cpu, cpu:avx2, cuda[:i], sm_90a, sm_120a:num_sms=94, ... (default cpu)",
              value_of<&L::device>},
    OptionRow{kExecution,
              "--allow-atomics",
              "",
              "allow a combine whose order may vary",
              flag<&L::allow_atomics>},
    OptionRow{kExecution,
              "--batch-invariant",
              "",
              "a token's row depends on that token alone",
              flag<&L::batch_invariant>},
    OptionRow{kExecution,
              "--max-workspace",
              "BYTES",
              "cut large M into chunks that fit",
              value_of<&L::max_workspace>},
    OptionRow{kExecution,
              "--pin",
              "KEY[=VALUE]",
              "family=direct|grouped, route_block_rows=N, tile=NAME, resident, pdl_first",
              repeated<&L::pins>},
    OptionRow{kExecution,
              "--threads",
              "N",
              "threads of the CPU backend (default all)",
              value_of<&L::threads>},
    OptionRow{kReport, "--json", "", "report as JSON", flag<&L::json>},
};

/// Adds every row of `groups` to `app`, bound to `options`.
void add_layer_options(CLI::App& app,
                       const std::vector<OptionGroup>& groups,
                       LayerOptions& options) {
  for (const OptionRow& row : kOptionRows) {
    if (std::find(groups.begin(), groups.end(), row.group) != groups.end()) {
      row.add(app, row, options);
    }
  }
}

constexpr const char* kJsonHelp = "report as JSON";

/// A list of token counts; the last mention counts, so that a reproducing line can append its own.
void add_token_list(CLI::App& app, std::string& tokens, const std::string& help) {
  app.add_option("--tokens", tokens, help)
      ->option_text("M[,M...]")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void add_seed(CLI::App& app, std::uint64_t& seed) {
  app.add_option("--seed", seed, "of random weights and inputs (default 1)")
      ->option_text("N")
      ->check(natural_number())
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void describe(CLI::App& verb, DevicesOptions& options) {
  verb.description("List the CPU and the CUDA devices");
  verb.add_flag("--json", options.json, kJsonHelp);
}

void describe(CLI::App& verb, KernelsOptions& options) {
  verb.description("Compile CUDA kernels ahead of time; look after bundles and caches of them");
  verb.add_option("action", options.action, "build, list, verify, prune or clear")
      ->option_text("ACTION")
      ->required()
      ->check(CLI::IsMember({"build", "list", "verify", "prune", "clear"}));
  verb.add_option("folder",
                  options.folder,
                  "list, verify: default the bundle and the cache; prune, clear: the cache")
      ->option_text("DIR");
  verb.add_option("--arch", options.archs, "of build: sm_80, sm_90a, ...")
      ->option_text("A[,A...]")
      ->delimiter(',');
  verb.add_option("--output", options.output, "of build: the bundle's folder")->option_text("DIR");
  verb.add_option("--threads", options.threads, "of build: compilers at a time (default all)")
      ->option_text("N")
      ->check(natural_number())
      ->check(CLI::Range(1, 1024));
  verb.add_flag("--json", options.json, kJsonHelp);
}

void describe(CLI::App& verb, InspectOptions& options) {
  verb.description("Say what a checkpoint holds, what was inferred from where, what was ignored");
  verb.add_option(
          "checkpoint", options.checkpoint, "a .safetensors or .gguf file or a Hugging Face folder")
      ->option_text("CHECKPOINT")
      ->required();
  verb.add_option("--layer", options.layer, "MoE layer to describe (default: the first)")
      ->option_text("N")
      ->check(natural_number());
  verb.add_flag("--json", options.json, kJsonHelp);
}

void describe(CLI::App& verb, QuantizeVerbOptions& options) {
  verb.description("Write a BF16 checkpoint again with its routed experts in four bits");
  verb.add_option("source", options.source, "a .safetensors file or a Hugging Face folder")
      ->option_text("SOURCE")
      ->required();
  verb.add_option("--format", options.format, "nvfp4 or mxfp4")
      ->option_text("F")
      ->required()
      ->check(CLI::IsMember({"nvfp4", "mxfp4"}));
  verb.add_option("--output", options.output, "folder; an interrupted one is continued")
      ->option_text("DIR")
      ->required();
  verb.add_option("--naming", options.naming, "modelopt (default) or compressed-tensors")
      ->option_text("NAME")
      ->check(CLI::IsMember({"modelopt", "compressed-tensors"}));
  verb.add_option("--threads", options.threads, "matrices at a time (default all)")
      ->option_text("N")
      ->check(natural_number())
      ->check(CLI::Range(1, 1024));
  verb.add_flag("--json", options.json, kJsonHelp);
}

void describe(CLI::App& verb, PlanOptions& options) {
  verb.description("Show how a layer runs: kernels, workspace, refusals");
  add_layer_options(
      verb, {kCheckpoint, kShape, kSemantics, kShard, kExecution, kReport}, options.layer);
  verb.add_option("--tokens", options.tokens, "capacity, and the token count to explain")
      ->option_text("M")
      ->check(natural_number());
  verb.add_flag("--matrix", options.matrix, "recipes, devices, activations: status or refusal");
}

void describe(CLI::App& verb, RunOptions& options) {
  verb.description("Run one layer of a checkpoint on the tensors of a file");
  add_layer_options(verb, {kCheckpoint, kSemantics, kExecution, kReport}, options.layer);
  verb.get_option("--checkpoint")->required();
  verb.add_option(
          "--input",
          options.input,
          "hidden_states, and topk_ids with topk_weights, or router_logits, or neither; token_ids "
          "where the layer selects by token id")
      ->option_text("IN.safetensors")
      ->required();
  verb.add_option("--output", options.output, "where the output is written")
      ->option_text("OUT.safetensors")
      ->required();
  verb.add_flag("--check", options.check, "compare with the float64 oracle; exit 1 on failure");
}

void describe(CLI::App& verb, VerifyOptions& options) {
  verb.description("Compare a layer, a case or a suite with the float64 oracle");
  add_layer_options(verb, {kCheckpoint, kShape, kSemantics, kExecution, kReport}, options.layer);
  add_token_list(verb, options.tokens, "token counts of a SUBJECT (default 1,2,7,8,33)");
  verb.add_option("--suite", options.suite, "quick or full (default quick without a SUBJECT)")
      ->option_text("NAME");
  verb.add_option("--case", options.case_line, "one case, as a failure prints it")
      ->option_text("LINE");
  add_seed(verb, options.seed);
  verb.add_option("--jobs", options.jobs, "cases checked at a time (default: one per core)")
      ->option_text("N")
      ->check(natural_number());
}

void describe(CLI::App& verb, BenchOptions& options) {
  verb.description("Check a layer, then time it beside a linear read of memory");
  add_layer_options(verb, {kCheckpoint, kShape, kSemantics, kExecution, kReport}, options.layer);
  add_token_list(verb, options.tokens, "token counts (default 1,8,64)");
  verb.add_option("--seconds", options.seconds, "time spent on each token count (default 2)")
      ->option_text("S");
  verb.add_option("--isa", options.isas, "CPU bodies that take turns: avx512, avx2, portable")
      ->option_text("ISA[,ISA...]")
      ->delimiter(',');
  verb.add_flag("--on-request",
                options.on_request,
                "time calls when the standard input asks for them, see bench/compare");
  add_seed(verb, options.seed);
}

/// What the callbacks of the verbs share.
struct Parsing {
  std::string command_line{};  // as typed
  ChosenVerb chosen{};
};

template <typename Options>
void add_verb(CLI::App& app,
              Parsing& parsing,
              const char* name,
              Result<ExitCode> (*verb)(Console&, const Options&)) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand(name);
  describe(*sub, *options);
  sub->callback([options, sub, &parsing, verb] {
    if constexpr (requires { options->command_line; }) {
      options->command_line = parsing.command_line;
    }
    if constexpr (requires { options->given; }) {
      for (const CLI::Option* option : sub->get_options()) {
        if (option->count() > 0) {
          options->given.push_back(option->get_name());
        }
      }
    }
    parsing.chosen = [options, verb](Console& console) { return verb(console, *options); };
  });
}

void add_verbs(CLI::App& app, Parsing& parsing) {
  add_verb(app, parsing, "devices", devices_verb);
  add_verb(app, parsing, "inspect", inspect_verb);
  add_verb(app, parsing, "plan", plan_verb);
  add_verb(app, parsing, "run", run_verb);
  add_verb(app, parsing, "verify", verify_verb);
  add_verb(app, parsing, "bench", bench_verb);
  add_verb(app, parsing, "kernels", kernels_verb);
  add_verb(app, parsing, "quantize", quantize_verb);
}

/// CLI11 would say that a subcommand is missing, whatever stands in its place.
Status check_verb(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands(nullptr)) {
    names.push_back(verb->get_name());
  }
  const std::string given = argc > 1 ? argv[1] : "";
  if (given.empty()) {
    return invalid_argument(fmt::format("no verb, expected one of {}", fmt::join(names, ", ")));
  }
  constexpr std::array<std::string_view, 3> kWithoutVerb{"--version", "--help", "-h"};
  if (given.front() == '-' &&
      std::find(kWithoutVerb.begin(), kWithoutVerb.end(), given) == kWithoutVerb.end()) {
    return invalid_argument(
        fmt::format("{}: unknown option before the verb, expected one of {} or a verb",
                    given,
                    fmt::join(kWithoutVerb, ", ")));
  }
  if (given.front() != '-' && std::find(names.begin(), names.end(), given) == names.end()) {
    return invalid_argument(
        fmt::format("{}: unknown verb, expected one of {}", given, fmt::join(names, ", ")));
  }
  return {};
}

/// The command line as one string that a POSIX shell reads back.
std::string quoted_command_line(int argc, char** argv) {
  std::string line = "moekit";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
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

ChosenVerb print_text(std::string text) {
  return [text = std::move(text)](Console& console) -> Result<ExitCode> {
    console.report(text);
    return ExitCode::kOk;
  };
}

}  // namespace

Result<ChosenVerb> parse_command_line(int argc, char** argv) {
  CLI::App app{"One fused Mixture-of-Experts layer from a low-bit checkpoint"};
  app.name("moekit");
  app.set_version_flag("--version", fmt::format("moekit {} ({})", build_version(), build_commit()));
  app.require_subcommand(1);
  Parsing parsing;
  parsing.command_line = quoted_command_line(argc, argv);
  add_verbs(app, parsing);
  MOEKIT_RETURN_IF_ERROR(check_verb(app, argc, argv));
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForVersion& version) {
    return print_text(std::string(version.what()) + "\n");
  } catch (const CLI::CallForHelp&) {
    return print_text(app.help());  // of the verb that was asked about, if any
  } catch (const CLI::ParseError& error) {
    return invalid_argument(std::string(error.what()));
  }
  return parsing.chosen;
}

}  // namespace moekit::cli
