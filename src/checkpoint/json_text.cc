// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/json_text.h"

#include <array>
#include <utility>
#include <vector>

#include "base/text.h"

namespace moekit::checkpoint {
namespace {

using base::cat;
using nlohmann::json;

constexpr std::size_t kMaxQuoted = 160;

/// Receives the parser's events and builds the document; stops at the first thing that is refused.
class DocumentBuilder {
 public:
  using number_integer_t = json::number_integer_t;
  using number_unsigned_t = json::number_unsigned_t;
  using number_float_t = json::number_float_t;
  using string_t = json::string_t;
  using binary_t = json::binary_t;

  bool null() { return add(json(nullptr)); }

  bool boolean(bool value) { return add(json(value)); }

  bool number_integer(number_integer_t value) { return add(json(value)); }

  bool number_unsigned(number_unsigned_t value) { return add(json(value)); }

  bool number_float(number_float_t value, const string_t& /*text*/) { return add(json(value)); }

  bool string(string_t& value) { return add(json(std::move(value))); }

  bool binary(binary_t& /*value*/) { return refuse("binary value"); }

  bool start_object(std::size_t /*size*/) { return open(json::object()); }

  bool start_array(std::size_t /*size*/) { return open(json::array()); }

  bool end_object() { return close(); }

  bool end_array() { return close(); }

  bool key(string_t& name) {
    if (open_.back()->contains(name)) {
      return refuse(cat("duplicate key ", printable(name)));
    }
    key_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string& token, const json::exception& error) {
    // The parser's message repeats raw input; position and token say as much, printable.
    const bool out_of_range = dynamic_cast<const json::out_of_range*>(&error) != nullptr;
    return refuse(cat(out_of_range ? "number out of range" : "syntax error",
                      " at byte ",
                      position,
                      ", near ",
                      printable(token)));
  }

  [[nodiscard]] Result<json> take() {
    if (!status_.ok()) {
      return status_;
    }
    return std::move(root_);
  }

 private:
  bool refuse(std::string message) {
    if (status_.ok()) {
      status_ = invalid_argument(std::move(message));
    }
    return false;
  }

  json* place(json&& value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }

  bool add(json&& value) {
    place(std::move(value));
    return true;
  }

  bool open(json&& container) {
    if (open_.size() >= static_cast<std::size_t>(kMaxJsonDepth)) {
      return refuse(cat("nesting deeper than ", kMaxJsonDepth));
    }
    // Containers do not move while they are open: an array grows only after its last element
    // closed.
    open_.push_back(place(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  json root_;
  std::vector<json*> open_;
  std::string key_;
  Status status_;
};

constexpr std::array<std::string_view, 3> kPythonLiterals{"-Infinity", "Infinity", "NaN"};

}  // namespace

std::string printable(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out = "'";
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.size() > kMaxQuoted && i == kMaxQuoted / 2) {
      out += "...";
      i = text.size() - kMaxQuoted / 2;
    }
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte < 0x7F) {
      out += text[i];
    } else {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  return out + "'";
}

Result<json> parse_json(std::string_view text) {
  DocumentBuilder builder;
  json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

std::string wrap_python_literals(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    if (in_string) {
      const std::size_t taken = text[i] == '\\' && i + 1 < text.size() ? 2 : 1;
      in_string = text[i] != '"';
      out += text.substr(i, taken);
      i += taken;
      continue;
    }
    std::string_view found;
    for (const std::string_view literal : kPythonLiterals) {
      if (found.empty() && text.substr(i).starts_with(literal)) {
        found = literal;
      }
    }
    if (!found.empty()) {
      out += cat(R"({")", kPythonFloatKey, R"(": ")", found, R"("})");
      i += found.size();
    } else {
      in_string = text[i] == '"';
      out += text[i++];
    }
  }
  return out;
}

}  // namespace moekit::checkpoint
