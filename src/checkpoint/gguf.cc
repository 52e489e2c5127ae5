// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/text.h"
#include "checkpoint/json_text.h"
#include "checkpoint/shape_limits.h"

namespace moekit::checkpoint {
namespace {

using base::cat;

constexpr std::string_view kMagic = "GGUF";
constexpr std::uint32_t kMaxDims = 4;     // of ggml
constexpr std::uint64_t kMaxName = 1024;  // ggml's own limit is 64; no name comes near this
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kMaxAlignment = std::uint64_t{1} << 20;
constexpr int kMaxArrayDepth = 4;

enum class ValueType : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

/// Little-endian reading that never leaves the file.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> file) : file_(file) {}

  [[nodiscard]] std::uint64_t position() const { return at_; }

  [[nodiscard]] std::uint64_t left() const { return file_.size() - at_; }

  template <typename T>
  [[nodiscard]] Result<T> read() {
    if (left() < sizeof(T)) {
      return truncated(sizeof(T));
    }
    T value{};
    std::memcpy(&value, file_.data() + at_, sizeof(T));  // every platform of ours is little-endian
    at_ += sizeof(T);
    return value;
  }

  [[nodiscard]] Result<std::string_view> read_text(std::uint64_t limit) {
    MOEKIT_ASSIGN_OR_RETURN(const auto length, read<std::uint64_t>());
    if (length > left() || length > limit) {
      return invalid_argument(cat("text of ",
                                  length,
                                  " bytes at byte ",
                                  at_,
                                  ", expected at most ",
                                  std::min(limit, left())));
    }
    const std::string_view text(reinterpret_cast<const char*>(file_.data()) + at_,
                                static_cast<std::size_t>(length));
    at_ += length;
    return text;
  }

  [[nodiscard]] Status skip(std::uint64_t bytes) {
    if (bytes > left()) {
      return truncated(bytes);
    }
    at_ += bytes;
    return {};
  }

 private:
  [[nodiscard]] Status truncated(std::uint64_t wanted) const {
    return invalid_argument(
        cat("file ends at byte ", file_.size(), ", ", wanted, " more needed at byte ", at_));
  }

  std::span<const std::byte> file_;
  std::uint64_t at_ = 0;
};

std::uint64_t scalar_bytes(ValueType type) {
  switch (type) {
    case ValueType::kU8:
    case ValueType::kI8:
    case ValueType::kBool:
      return 1;
    case ValueType::kU16:
    case ValueType::kI16:
      return 2;
    case ValueType::kU32:
    case ValueType::kI32:
    case ValueType::kF32:
      return 4;
    case ValueType::kU64:
    case ValueType::kI64:
    case ValueType::kF64:
      return 8;
    case ValueType::kString:
    case ValueType::kArray:
      break;
  }
  return 0;
}

template <typename T>
Status read_number(Cursor& cursor, GgufValue& value) {
  MOEKIT_ASSIGN_OR_RETURN(const T number, cursor.read<T>());
  value.number = static_cast<double>(number);
  if constexpr (std::numeric_limits<T>::is_integer) {
    if (number >= T{0}) {
      value.integer = static_cast<std::uint64_t>(number);
    }
  }
  return {};
}

Status read_scalar(Cursor& cursor, ValueType type, GgufValue& value) {
  switch (type) {
    case ValueType::kU8:
      return read_number<std::uint8_t>(cursor, value);
    case ValueType::kI8:
      return read_number<std::int8_t>(cursor, value);
    case ValueType::kU16:
      return read_number<std::uint16_t>(cursor, value);
    case ValueType::kI16:
      return read_number<std::int16_t>(cursor, value);
    case ValueType::kU32:
      return read_number<std::uint32_t>(cursor, value);
    case ValueType::kI32:
      return read_number<std::int32_t>(cursor, value);
    case ValueType::kF32:
      return read_number<float>(cursor, value);
    case ValueType::kU64:
      return read_number<std::uint64_t>(cursor, value);
    case ValueType::kI64:
      return read_number<std::int64_t>(cursor, value);
    case ValueType::kF64:
      return read_number<double>(cursor, value);
    case ValueType::kBool: {
      MOEKIT_ASSIGN_OR_RETURN(const auto byte, cursor.read<std::uint8_t>());
      if (byte > 1) {
        return invalid_argument(cat("boolean is ", int{byte}, ", expected 0 or 1"));
      }
      value.boolean = byte == 1;
      return {};
    }
    case ValueType::kString:
    case ValueType::kArray:
      break;
  }
  return invalid_argument(
      cat("value type ", static_cast<std::uint32_t>(type), ", expected 0 to 12"));
}

Status read_array(Cursor& cursor, int depth, GgufValue& value) {
  if (depth > kMaxArrayDepth) {
    return invalid_argument(cat("arrays nest deeper than ", kMaxArrayDepth));
  }
  MOEKIT_ASSIGN_OR_RETURN(const auto raw_type, cursor.read<std::uint32_t>());
  MOEKIT_ASSIGN_OR_RETURN(const auto count, cursor.read<std::uint64_t>());
  const auto type = static_cast<ValueType>(raw_type);
  const std::uint64_t width = scalar_bytes(type);
  if (width == 0 && type != ValueType::kString && type != ValueType::kArray) {
    return invalid_argument(cat("array of value type ", raw_type, ", expected 0 to 12"));
  }
  // A text takes at least its length, an array its type and count.
  const std::uint64_t least = width != 0 ? width : type == ValueType::kString ? 8 : 12;
  if (count > cursor.left() / least) {
    return invalid_argument(
        cat("array of ", count, " elements in the ", cursor.left(), " bytes left"));
  }
  if (width != 0 && (depth > 1 || count > kMaxKeptNumbers)) {
    return cursor.skip(count * width);
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    if (type == ValueType::kString) {
      MOEKIT_RETURN_IF_ERROR(cursor.read_text(std::numeric_limits<std::uint64_t>::max()).status());
    } else if (type == ValueType::kArray) {
      GgufValue inner;
      MOEKIT_RETURN_IF_ERROR(read_array(cursor, depth + 1, inner));
    } else {
      GgufValue element;
      MOEKIT_RETURN_IF_ERROR(read_scalar(cursor, type, element));
      value.numbers.push_back(element.number.value_or(element.boolean.value_or(false) ? 1.0 : 0.0));
    }
  }
  return {};
}

Status read_value(Cursor& cursor, GgufValue& value) {
  MOEKIT_ASSIGN_OR_RETURN(const auto raw_type, cursor.read<std::uint32_t>());
  const auto type = static_cast<ValueType>(raw_type);
  if (type == ValueType::kArray) {
    return read_array(cursor, 1, value);
  }
  if (type == ValueType::kString) {
    MOEKIT_ASSIGN_OR_RETURN(const std::string_view text,
                            cursor.read_text(std::numeric_limits<std::uint64_t>::max()));
    value.text = std::string(text);
    return {};
  }
  return read_scalar(cursor, type, value);
}

Result<std::string> read_name(Cursor& cursor, std::string_view what) {
  MOEKIT_ASSIGN_OR_RETURN(const std::string_view name, cursor.read_text(kMaxName));
  if (name.empty() || !base::is_utf8(name)) {
    return invalid_argument(cat(what, " name ", printable(name), " is empty or not UTF-8"));
  }
  return std::string(name);
}

Status read_metadata(Cursor& cursor, std::uint64_t count, GgufContent& content) {
  for (std::uint64_t i = 0; i < count; ++i) {
    MOEKIT_ASSIGN_OR_RETURN(std::string key, read_name(cursor, "metadata"));
    GgufValue value;
    if (Status status = read_value(cursor, value); !status.ok()) {
      return status.with_context(cat("metadata ", printable(key)));
    }
    const std::string shown = printable(key);
    if (!content.metadata.emplace(std::move(key), std::move(value)).second) {
      return invalid_argument(cat("metadata ", shown, " stands twice"));
    }
  }
  return {};
}

const GgufType* find_type(std::uint32_t id) {
  for (const GgufType& type : kGgufTypes) {
    if (type.id == id) {
      return &type;
    }
  }
  return nullptr;
}

struct Located {
  TensorEntry entry;
  std::uint64_t offset = 0;  // from the start of the tensor bytes
  std::uint64_t bytes = 0;
};

Result<std::uint64_t> tensor_bytes(const GgufType& type, const std::vector<std::int64_t>& shape) {
  const std::int64_t row = shape.empty() ? 1 : shape.back();
  if (row % type.block_elems != 0) {
    return invalid_argument(cat("rows of ",
                                row,
                                " elements are no whole ",
                                type.dtype.name,
                                " blocks of ",
                                type.block_elems));
  }
  MOEKIT_RETURN_IF_ERROR(check_shape_limits(shape));
  std::int64_t bytes = type.block_bytes * (row / type.block_elems);
  for (std::size_t axis = 0; axis + 1 < shape.size(); ++axis) {
    bytes *= shape[axis];
  }
  return static_cast<std::uint64_t>(bytes);
}

Status read_description(Cursor& cursor, Located& located) {
  MOEKIT_ASSIGN_OR_RETURN(const auto num_dims, cursor.read<std::uint32_t>());
  if (num_dims > kMaxDims) {
    return invalid_argument(cat(num_dims, " dimensions, expected at most ", kMaxDims));
  }
  for (std::uint32_t axis = 0; axis < num_dims; ++axis) {
    MOEKIT_ASSIGN_OR_RETURN(const auto extent, cursor.read<std::uint64_t>());
    if (extent > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
      return invalid_argument(cat("extent ", extent, ", expected at most 2^63 - 1"));
    }
    located.entry.shape.insert(located.entry.shape.begin(), static_cast<std::int64_t>(extent));
  }
  MOEKIT_ASSIGN_OR_RETURN(const auto type_id, cursor.read<std::uint32_t>());
  const GgufType* type = find_type(type_id);
  if (type == nullptr) {
    return invalid_argument(cat("tensor type ", type_id, " is unknown"));
  }
  located.entry.dtype = &type->dtype;
  MOEKIT_ASSIGN_OR_RETURN(located.offset, cursor.read<std::uint64_t>());
  MOEKIT_ASSIGN_OR_RETURN(located.bytes, tensor_bytes(*type, located.entry.shape));
  return {};
}

Result<std::vector<Located>> read_descriptions(Cursor& cursor, std::uint64_t count) {
  std::vector<Located> tensors;
  for (std::uint64_t i = 0; i < count; ++i) {
    MOEKIT_ASSIGN_OR_RETURN(std::string name, read_name(cursor, "tensor"));
    Located located;
    if (Status status = read_description(cursor, located); !status.ok()) {
      return status.with_context(cat("tensor ", printable(name)));
    }
    located.entry.name = std::move(name);
    tensors.push_back(std::move(located));
  }
  return tensors;
}

Result<std::uint64_t> read_alignment(const GgufContent& content) {
  const auto found = content.metadata.find("general.alignment");
  if (found == content.metadata.end()) {
    return kDefaultAlignment;
  }
  const std::uint64_t alignment = found->second.integer.value_or(0);
  if (alignment == 0 || alignment > kMaxAlignment || (alignment & (alignment - 1)) != 0) {
    return invalid_argument(
        cat("general.alignment is ", alignment, ", expected a power of two up to ", kMaxAlignment));
  }
  return alignment;
}

/// Checks where the tensors lie and gives each its bytes.
Status place_tensors(std::span<const std::byte> stored,
                     std::uint64_t alignment,
                     std::vector<Located>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const Located& left, const Located& right) {
    return std::pair(left.offset, left.bytes) < std::pair(right.offset, right.bytes);
  });
  std::uint64_t covered = 0;
  for (Located& located : tensors) {
    const std::string name = printable(located.entry.name);
    if (located.offset % alignment != 0) {
      return invalid_argument(
          cat("tensor ", name, " lies at ", located.offset, ", not aligned to ", alignment));
    }
    if (located.offset > stored.size() || located.bytes > stored.size() - located.offset) {
      return invalid_argument(cat("tensor ",
                                  name,
                                  " of ",
                                  located.bytes,
                                  " bytes at ",
                                  located.offset,
                                  " does not lie in the ",
                                  stored.size(),
                                  " bytes of tensors"));
    }
    if (located.offset < covered) {
      return invalid_argument(cat(
          "tensor ", name, " begins at ", located.offset, ", where another one ends at ", covered));
    }
    covered = located.offset + located.bytes;
    located.entry.bytes = stored.subspan(static_cast<std::size_t>(located.offset),
                                         static_cast<std::size_t>(located.bytes));
  }
  return {};
}

Result<std::uint32_t> read_version(Cursor& cursor) {
  MOEKIT_ASSIGN_OR_RETURN(const auto version, cursor.read<std::uint32_t>());
  if (version != 2 && version != 3) {
    return invalid_argument(
        cat("GGUF version ",
            version,
            (version & 0xFFFFU) == 0 && version != 0 ? " (big-endian file)" : "",
            ", expected 2 or 3, little-endian"));
  }
  return version;
}

}  // namespace

bool is_gguf(std::span<const std::byte> file) {
  return file.size() >= kMagic.size() &&
         std::memcmp(file.data(), kMagic.data(), kMagic.size()) == 0;
}

Result<GgufContent> parse_gguf(std::span<const std::byte> file) {
  if (!is_gguf(file)) {
    return invalid_argument("file does not begin with GGUF");
  }
  Cursor cursor(file);
  MOEKIT_RETURN_IF_ERROR(cursor.skip(kMagic.size()));
  GgufContent content;
  MOEKIT_ASSIGN_OR_RETURN(content.version, read_version(cursor));
  MOEKIT_ASSIGN_OR_RETURN(const auto num_tensors, cursor.read<std::uint64_t>());
  MOEKIT_ASSIGN_OR_RETURN(const auto num_values, cursor.read<std::uint64_t>());
  MOEKIT_RETURN_IF_ERROR(read_metadata(cursor, num_values, content));
  MOEKIT_ASSIGN_OR_RETURN(std::vector<Located> tensors, read_descriptions(cursor, num_tensors));
  MOEKIT_ASSIGN_OR_RETURN(const std::uint64_t alignment, read_alignment(content));
  const std::uint64_t padding = (alignment - cursor.position() % alignment) % alignment;
  const auto start = static_cast<std::size_t>(cursor.position() + std::min(padding, cursor.left()));
  MOEKIT_RETURN_IF_ERROR(place_tensors(file.subspan(start), alignment, tensors));
  std::map<std::string, int, std::less<>> seen;
  for (Located& located : tensors) {
    if (!seen.emplace(located.entry.name, 0).second) {
      return invalid_argument(cat("tensor ", printable(located.entry.name), " stands twice"));
    }
    content.tensors.push_back(std::move(located.entry));
  }
  return content;
}

}  // namespace moekit::checkpoint
