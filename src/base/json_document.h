// SPDX-License-Identifier: Apache-2.0
#pragma once

// JSON from files that nobody vouches for: bounded in depth, duplicate keys refused, every failure
// a Status, and taken apart without memory. For `Json` = nlohmann::json, which this layer does not
// know; the layers that read and write JSON name it.

#include <cstddef>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moekit/status.h"

#include "base/text.h"

namespace moekit::base {

inline constexpr int kMaxJsonDepth = 32;

/// Empties `json` from its leaves up. Its own destructor puts a container's members aside in memory
/// that it asks for, and ends the process where there is none; of empty containers it asks nothing.
template <typename Json>
void take_apart(Json& json) noexcept {
  if (auto* const list = json.template get_ptr<typename Json::array_t*>(); list != nullptr) {
    for (Json& child : *list) {
      take_apart(child);
    }
    list->clear();
  }
  if (auto* const members = json.template get_ptr<typename Json::object_t*>(); members != nullptr) {
    for (auto& [name, child] : *members) {
      take_apart(child);
    }
    members->clear();
  }
}

/// `object[key]`. A null becomes an object in a step of its own: by itself it would call itself one
/// before it has the memory.
template <typename Json>
[[nodiscard]] Json& member(Json& object, std::string_view key) {
  if (object.is_null()) {
    object = Json::object();
  }
  return object[std::string(key)];
}

/// `object[key] = value` in two steps: a container made before its place would be destroyed by
/// itself where there is no memory for the place.
template <typename Json, typename Value>
void set_member(Json& object, std::string_view key, const Value& value) {
  Json& place = member(object, key);
  place = value;
}

/// Owns a document and takes it apart. Nothing else may own a container that is not empty while
/// memory is asked for: build in place (set_member), and read by reference.
template <typename Json>
class JsonDocument {
 public:
  JsonDocument() : root_(nullptr) {}

  JsonDocument(JsonDocument&& other) noexcept : root_(std::move(other.root_)) {}

  JsonDocument& operator=(JsonDocument&& other) noexcept {
    root_.swap(other.root_);
    return *this;
  }

  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;

  ~JsonDocument() { take_apart(root_); }

  [[nodiscard]] Json& operator*() noexcept { return root_; }

  [[nodiscard]] const Json& operator*() const noexcept { return root_; }

  [[nodiscard]] Json* operator->() noexcept { return &root_; }

  [[nodiscard]] const Json* operator->() const noexcept { return &root_; }

 private:
  Json root_;
};

/// Receives the parser's events and builds the document; stops at the first thing that is refused.
template <typename Json>
class JsonBuilder {
 public:
  using number_integer_t = typename Json::number_integer_t;
  using number_unsigned_t = typename Json::number_unsigned_t;
  using number_float_t = typename Json::number_float_t;
  using string_t = typename Json::string_t;
  using binary_t = typename Json::binary_t;

  bool null() { return add(Json(nullptr)); }

  bool boolean(bool value) { return add(Json(value)); }

  bool number_integer(number_integer_t value) { return add(Json(value)); }

  bool number_unsigned(number_unsigned_t value) { return add(Json(value)); }

  bool number_float(number_float_t value, const string_t& /*text*/) { return add(Json(value)); }

  bool string(string_t& value) { return add(Json(std::move(value))); }

  bool binary(binary_t& /*value*/) { return refuse("binary value"); }

  bool start_object(std::size_t /*size*/) { return open(Json::object()); }

  bool start_array(std::size_t /*size*/) { return open(Json::array()); }

  bool end_object() { return close(); }

  bool end_array() { return close(); }

  bool key(string_t& name) {
    if (open_.back()->contains(name)) {
      return refuse(cat("duplicate key ", printable(name)));
    }
    key_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position,
                   const std::string& token,
                   const typename Json::exception& error) {
    // The parser's message repeats raw input; position and token say as much, printable.
    const bool out_of_range = dynamic_cast<const typename Json::out_of_range*>(&error) != nullptr;
    return refuse(cat(out_of_range ? "number out of range" : "syntax error",
                      " at byte ",
                      position,
                      ", near ",
                      printable(token)));
  }

  [[nodiscard]] Result<JsonDocument<Json>> take() {
    if (!status_.ok()) {
      return status_;
    }
    return std::move(document_);
  }

 private:
  bool refuse(std::string message) {
    if (status_.ok()) {
      status_ = invalid_argument(std::move(message));
    }
    return false;
  }

  Json* place(Json&& value) {
    if (open_.empty()) {
      *document_ = std::move(value);
      return &*document_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }

  bool add(Json&& value) {
    place(std::move(value));
    return true;
  }

  bool open(Json&& container) {
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

  JsonDocument<Json> document_;
  std::vector<Json*> open_;
  std::string key_;
  Status status_;
};

/// Parses one JSON document.
///
/// Errors  kInvalidArgument  syntax, ill-formed UTF-8, numbers out of range, nesting deeper than
///                           kMaxJsonDepth, a key twice in one object, anything after the document
template <typename Json>
[[nodiscard]] Result<JsonDocument<Json>> parse_json(std::string_view text) {
  JsonBuilder<Json> builder;
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace moekit::base
