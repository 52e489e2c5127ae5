// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "checkpoint/json_text.h"
#include "checkpoint/shape_limits.h"

namespace moekit::checkpoint {
namespace {

using base::cat;
using nlohmann::json;

constexpr std::size_t kLengthBytes = 8;

/// Offsets of one tensor relative to the end of the header.
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct LocatedEntry {
  TensorEntry entry;
  Range range;
};

Result<std::string_view> header_text(std::span<const std::byte> file) {
  if (file.size() < kLengthBytes) {
    return invalid_argument(cat("file has ", file.size(), " bytes, expected at least 8"));
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
  }
  if (length > static_cast<std::uint64_t>(kMaxHeaderBytes)) {
    return invalid_argument(
        cat("header length ", length, ", expected at most ", kMaxHeaderBytes, " bytes"));
  }
  if (length > file.size() - kLengthBytes) {
    return invalid_argument(cat("header length ",
                                length,
                                " exceeds the ",
                                file.size() - kLengthBytes,
                                " bytes that follow (truncated file)"));
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                              static_cast<std::size_t>(length));
  if (!text.starts_with('{')) {
    return invalid_argument("header does not begin with '{'");
  }
  return text;
}

Result<std::vector<std::int64_t>> read_shape(const json& fields) {
  const auto found = fields.find("shape");
  if (found == fields.end() || !found->is_array()) {
    return invalid_argument("shape is missing or not an array");
  }
  std::vector<std::int64_t> shape;
  for (const json& extent : *found) {
    if (!extent.is_number_unsigned() ||
        extent.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
      return invalid_argument(
          cat("shape[", shape.size(), "] is not an integer from 0 to 2^63 - 1"));
    }
    shape.push_back(extent.get<std::int64_t>());
  }
  return shape;
}

Result<Range> read_range(const json& fields, std::uint64_t available) {
  const auto found = fields.find("data_offsets");
  if (found == fields.end() || !found->is_array() || found->size() != 2 ||
      !(*found)[0].is_number_unsigned() || !(*found)[1].is_number_unsigned()) {
    return invalid_argument("data_offsets is missing or not two non-negative integers");
  }
  const Range range{(*found)[0].get<std::uint64_t>(), (*found)[1].get<std::uint64_t>()};
  if (range.begin > range.end || range.end > available) {
    return invalid_argument(cat("data_offsets [",
                                range.begin,
                                ", ",
                                range.end,
                                "] do not lie in the ",
                                available,
                                " bytes of data"));
  }
  return range;
}

Result<const ContainerDType*> read_dtype(const json& fields) {
  const auto found = fields.find("dtype");
  if (found == fields.end() || !found->is_string()) {
    return invalid_argument("dtype is missing or not a string");
  }
  const auto& name = found->get_ref<const std::string&>();
  for (const ContainerDType& row : kContainerDTypes) {
    if (row.name == name) {
      return &row;
    }
  }
  return invalid_argument(cat("dtype ", printable(name), " is unknown"));
}

/// Bytes of `shape`, or an error when the product leaves 63 bits or is no whole number of bytes.
Result<std::uint64_t> shape_bytes(const std::vector<std::int64_t>& shape, int bits) {
  MOEKIT_RETURN_IF_ERROR(check_shape_limits(shape));
  std::int64_t total_bits = bits;
  for (const std::int64_t extent : shape) {
    total_bits *= extent;
  }
  if (total_bits % 8 != 0) {
    return invalid_argument(
        cat("shape [", base::join(shape), "] of ", bits, "-bit elements is no whole byte count"));
  }
  return static_cast<std::uint64_t>(total_bits / 8);
}

Result<LocatedEntry> read_entry(const json& fields, std::uint64_t available) {
  if (!fields.is_object()) {
    return invalid_argument("entry is not an object");
  }
  LocatedEntry located;
  MOEKIT_ASSIGN_OR_RETURN(located.entry.dtype, read_dtype(fields));
  MOEKIT_ASSIGN_OR_RETURN(located.entry.shape, read_shape(fields));
  MOEKIT_ASSIGN_OR_RETURN(located.range, read_range(fields, available));
  MOEKIT_ASSIGN_OR_RETURN(const std::uint64_t expected,
                          shape_bytes(located.entry.shape, located.entry.dtype->bits));
  if (located.range.end - located.range.begin != expected) {
    return invalid_argument(cat("data_offsets [",
                                located.range.begin,
                                ", ",
                                located.range.end,
                                "] hold ",
                                located.range.end - located.range.begin,
                                " bytes, shape [",
                                base::join(located.entry.shape),
                                "] of ",
                                located.entry.dtype->name,
                                " needs ",
                                expected));
  }
  return located;
}

Status read_metadata(const json& metadata, SafetensorsContent& content) {
  if (!metadata.is_object()) {
    return invalid_argument("__metadata__ is not an object");
  }
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) {
      return invalid_argument(cat("__metadata__ ", printable(key), " is not a string"));
    }
    content.metadata.emplace(key, value.get<std::string>());
  }
  return {};
}

void list_unknown_fields(const std::string& name, const json& fields, SafetensorsContent& content) {
  constexpr std::array<std::string_view, 3> kKnown{"dtype", "shape", "data_offsets"};
  for (const auto& [key, value] : fields.items()) {
    if (std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end()) {
      content.ignored_fields.push_back(cat(printable(name), " ", printable(key)));
    }
  }
}

/// Entries sorted by offset must follow each other from 0 to the end of the file.
Status check_coverage(const std::vector<LocatedEntry>& entries, std::uint64_t available) {
  std::uint64_t covered = 0;
  const LocatedEntry* previous = nullptr;
  for (const LocatedEntry& located : entries) {
    if (located.range.begin != covered) {
      return invalid_argument(
          cat("tensor ",
              printable(located.entry.name),
              " begins at byte ",
              located.range.begin,
              located.range.begin < covered ? ", overlapping " : ", after a hole behind ",
              previous == nullptr ? "the header" : printable(previous->entry.name),
              " which ends at ",
              covered));
    }
    covered = located.range.end;
    previous = &located;
  }
  if (covered != available) {
    return invalid_argument(
        cat("tensors cover ", covered, " bytes of data, the file holds ", available));
  }
  return {};
}

}  // namespace

Result<SafetensorsContent> parse_safetensors(std::span<const std::byte> file) {
  MOEKIT_ASSIGN_OR_RETURN(const std::string_view text, header_text(file));
  const Result<Document> header = parse_json(text);
  if (!header.has_value()) {
    return header.status().with_context("header");
  }
  const std::span<const std::byte> stored = file.subspan(kLengthBytes + text.size());
  SafetensorsContent content;
  std::vector<LocatedEntry> entries;
  for (const auto& [name, fields] : (*header)->items()) {
    if (name == "__metadata__") {
      MOEKIT_RETURN_IF_ERROR(read_metadata(fields, content));
      continue;
    }
    Result<LocatedEntry> located = read_entry(fields, stored.size());
    if (!located.has_value()) {
      return located.status().with_context(cat("tensor ", printable(name)));
    }
    list_unknown_fields(name, fields, content);
    located->entry.name = name;
    entries.push_back(std::move(*located));
  }
  std::sort(
      entries.begin(), entries.end(), [](const LocatedEntry& left, const LocatedEntry& right) {
        return std::pair(left.range.begin, left.range.end) <
               std::pair(right.range.begin, right.range.end);
      });
  MOEKIT_RETURN_IF_ERROR(check_coverage(entries, stored.size()));
  for (LocatedEntry& located : entries) {
    located.entry.bytes =
        stored.subspan(static_cast<std::size_t>(located.range.begin),
                       static_cast<std::size_t>(located.range.end - located.range.begin));
    content.tensors.push_back(std::move(located.entry));
  }
  return content;
}

}  // namespace moekit::checkpoint
