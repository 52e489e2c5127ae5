// SPDX-License-Identifier: Apache-2.0
#include "cli/option_parser.h"

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

#include <CLI/CLI.hpp>

namespace moekit::cli {
namespace {

using Kind = OptionTarget::Kind;

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// Reads a decimal number of the row's range, at most `largest`. CLI11 would read 010 as octal and
/// wrap a negative number into an unsigned one. Returns what is wrong, or nothing.
std::string read_integer(const OptionRow& row,
                         const std::string& text,
                         std::int64_t largest,
                         std::int64_t& value) {
  const bool digits = text.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || (text != "0" && text.front() == '0')) {
    return ": no decimal number from 0";
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value > largest) {
    return " is above " + std::to_string(largest);
  }
  if (value < row.minimum || value > row.maximum) {
    return ": expected " + std::to_string(row.minimum) + " to " + std::to_string(row.maximum);
  }
  return {};
}

template <typename Number>
std::string read_real(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? "" : ": no number in range";
}

std::string set_number(const OptionRow& row, const std::string& text) {
  const OptionTarget& target = row.target;
  if (target.kind() == Kind::kDouble) {
    return read_real(text, target.as<double>());
  }
  if (target.kind() == Kind::kMaybeFloat) {
    return read_real(text, target.as<std::optional<float>>().emplace());
  }
  const bool narrow = target.kind() == Kind::kInt || target.kind() == Kind::kMaybeInt;
  const std::int64_t largest =
      narrow ? std::numeric_limits<int>::max() : std::numeric_limits<std::int64_t>::max();
  std::int64_t value = 0;
  if (std::string wrong = read_integer(row, text, largest, value); !wrong.empty()) {
    return wrong;
  }
  if (target.kind() == Kind::kInt) {
    target.as<int>() = static_cast<int>(value);
  } else if (target.kind() == Kind::kMaybeInt) {
    target.as<std::optional<int>>() = static_cast<int>(value);
  } else if (target.kind() == Kind::kUint64) {
    target.as<std::uint64_t>() = static_cast<std::uint64_t>(value);
  } else {
    target.as<std::optional<std::int64_t>>() = value;
  }
  return {};
}

/// Puts one value in its place; the result is what is wrong with it, or empty.
std::string set_value(const OptionRow& row, const std::string& text) {
  const OptionTarget& target = row.target;
  switch (target.kind()) {
    case Kind::kText:
      target.as<std::string>() = text;
      break;
    case Kind::kMaybeText:
      target.as<std::optional<std::string>>() = text;
      break;
    case Kind::kTexts:
      for (std::string& part : row.comma_list ? split(text, ',') : std::vector{text}) {
        target.as<std::vector<std::string>>().push_back(std::move(part));
      }
      break;
    default:
      return set_number(row, text);
  }
  const std::vector<std::string> words = split(row.words, '|');
  if (words.front().empty() || std::find(words.begin(), words.end(), text) != words.end()) {
    return {};
  }
  std::string known;
  for (const std::string& word : words) {
    known += (known.empty() ? "" : ", ") + word;
  }
  return ": unknown, one of " + known;
}

/// Every value of every option comes through here.
Status set_values(const OptionRow& row, const std::vector<std::string>& values) {
  const std::string name = row.name;
  for (const std::string& text : values) {
    if (text.empty()) {
      return invalid_argument(name + " '': empty, expected " + row.value + ": " + row.help);
    }
    if (const std::string wrong = set_value(row, text); !wrong.empty()) {
      return invalid_argument(name + " " + text + wrong);
    }
  }
  return {};
}

/// `status` takes the first error: what CLI11 finds missing afterwards is the lesser news.
void add_option(CLI::App& verb, const OptionRow& row, Status& status) {
  const CLI::callback_t set = [&row, &status](const CLI::results_t& values) {
    if (status.ok()) {
      status = set_values(row, values);
    }
    return true;
  };
  if (row.target.kind() == Kind::kFlag) {
    verb.add_flag_callback(
        row.name, [&row] { row.target.as<bool>() = true; }, row.help);
    return;
  }
  CLI::Option* option = verb.add_option(row.name, set, row.help)->option_text(row.value);
  option->required(row.required);
  if (row.mentions == Mentions::kLastCounts) {
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  if (row.target.kind() == Kind::kTexts) {
    // One value a mention unless commas part several: `--pin resident --json` must not swallow what
    // follows.
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    if (row.comma_list) {
      option->expected(1, -1);
    }
  }
}

/// CLI11 takes `--tokens=` for an option without a value; it is one with an empty value.
std::vector<std::string> with_empty_values(const std::vector<std::string>& words) {
  std::vector<std::string> split;
  for (const std::string& word : words) {
    const bool empty_value =
        word.size() > 3 && word.starts_with("--") && word.find('=') == word.size() - 1;
    split.push_back(empty_value ? word.substr(0, word.size() - 1) : word);
    if (empty_value) {
      split.emplace_back();
    }
  }
  return split;
}

ParsedLine text_line(std::string text) {
  ParsedLine line;
  line.text = std::move(text);
  return line;
}

}  // namespace

Result<ParsedLine> parse_options(const ProgramRow& program,
                                 const std::vector<VerbRow>& verbs,
                                 const std::vector<std::string>& words) {
  CLI::App app(program.description);
  app.name(program.name);
  app.set_version_flag("--version", program.version);
  app.require_subcommand(1);
  Status status;
  for (const VerbRow& verb : verbs) {
    CLI::App* sub = app.add_subcommand(verb.name, verb.description);
    for (const OptionRow& row : verb.options) {
      add_option(*sub, row, status);
    }
  }
  std::vector<std::string> reversed = with_empty_values(words);
  std::reverse(reversed.begin(), reversed.end());
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    MOEKIT_RETURN_IF_ERROR(status);
    if (error.get_exit_code() != 0) {
      return invalid_argument(error.what());
    }
    const bool version = error.get_name() == "CallForVersion";
    // Help is of the verb that was asked about, if any.
    return text_line(version ? std::string(error.what()) + "\n" : app.help());
  }
  MOEKIT_RETURN_IF_ERROR(status);
  ParsedLine line;
  const CLI::App* chosen = app.get_subcommands().front();
  line.verb = static_cast<std::size_t>(
      std::find_if(verbs.begin(),
                   verbs.end(),
                   [&](const VerbRow& verb) { return chosen->get_name() == verb.name; }) -
      verbs.begin());
  for (const CLI::Option* option : chosen->get_options()) {
    if (option->count() > 0) {
      line.given.push_back(option->get_name());
    }
  }
  return line;
}

}  // namespace moekit::cli
