// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "moekit/checkpoint.h"

#include "base/border.h"
#include "base/files.h"
#include "base/text.h"
#include "checkpoint/json_text.h"
#include "checkpoint/safetensors.h"

namespace moekit {
namespace {

using base::cat;
using base::set_member;
using checkpoint::ContainerDType;
using checkpoint::printable;
using checkpoint::TensorEntry;

Result<const ContainerDType*> container_dtype(DType dtype) {
  for (const ContainerDType& row : checkpoint::kContainerDTypes) {
    if (row.dtype == dtype) {
      return &row;
    }
  }
  return invalid_argument(cat("safetensors has no dtype for ", dtype_name(dtype)));
}

Result<TensorEntry> plan_tensor(const TensorToWrite& tensor) {
  const TensorView& view = tensor.view;
  TensorEntry planned{.name = tensor.name};
  MOEKIT_ASSIGN_OR_RETURN(planned.dtype, container_dtype(view.dtype));
  if (view.rank < 0 || view.rank > 4) {
    return invalid_argument(cat("rank ", view.rank, ", expected 0 to 4"));
  }
  std::int64_t elems = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    const auto i = static_cast<std::size_t>(axis);
    if (view.shape[i] < 0) {
      return invalid_argument(cat("shape[", axis, "] is ", view.shape[i]));
    }
    // The stride of an axis of extent 1 is never used.
    if (view.shape[i] > 1 && elems != 0 && view.strides[i] != elems) {
      return invalid_argument(cat("stride[",
                                  axis,
                                  "] is ",
                                  view.strides[i],
                                  ", expected ",
                                  elems,
                                  " (row-major without gaps)"));
    }
    if (__builtin_mul_overflow(elems, view.shape[i], &elems)) {
      return invalid_argument("shape has more than 2^63 elements");
    }
  }
  std::int64_t bits = 0;
  if (__builtin_mul_overflow(elems, std::int64_t{planned.dtype->bits}, &bits) || bits % 8 != 0) {
    return invalid_argument(
        cat(elems, " elements of ", planned.dtype->name, " are no whole bytes"));
  }
  if (view.data == nullptr && bits != 0) {
    return invalid_argument("data pointer is null");
  }
  planned.shape.assign(view.shape.begin(), view.shape.begin() + view.rank);
  planned.bytes = {static_cast<const std::byte*>(view.data), static_cast<std::size_t>(bits / 8)};
  return planned;
}

Result<std::string> planned_header(const std::vector<TensorEntry>& planned,
                                   const std::map<std::string, std::string>& metadata) {
  checkpoint::Document document;
  nlohmann::json& header = *document;
  header = nlohmann::json::object();
  if (!metadata.empty()) {
    set_member(header, "__metadata__", metadata);
  }
  std::int64_t offset = 0;
  for (const TensorEntry& item : planned) {
    if (item.name == "__metadata__") {
      return invalid_argument("a tensor cannot be named __metadata__");
    }
    if (header.contains(item.name)) {
      return invalid_argument(cat("tensor ", printable(item.name), " is given twice"));
    }
    const auto bytes = static_cast<std::int64_t>(item.bytes.size());
    nlohmann::json& fields = header[item.name];
    set_member(fields, "dtype", item.dtype->name);
    set_member(fields, "shape", item.shape);
    set_member(fields, "data_offsets", std::array{offset, offset + bytes});
    offset += bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::type_error&) {
    return invalid_argument("a tensor name or metadata entry is not UTF-8");
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

std::string length_prefix(std::size_t length) {
  std::string prefix(8, '\0');
  for (std::size_t i = 0; i < prefix.size(); ++i) {
    prefix[i] = static_cast<char>((static_cast<std::uint64_t>(length) >> (8 * i)) & 0xFFU);
  }
  return prefix;
}

}  // namespace

Status checkpoint::write_entries(const std::string& path,
                                 std::vector<TensorEntry> entries,
                                 const std::map<std::string, std::string>& metadata) {
  // Widest elements first keeps every tensor aligned to its element, as the crate's writer does.
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& left, const TensorEntry& right) {
    if (left.dtype->bits != right.dtype->bits) {
      return left.dtype->bits > right.dtype->bits;
    }
    return left.name < right.name;
  });
  MOEKIT_ASSIGN_OR_RETURN(const std::string header, planned_header(entries, metadata));
  MOEKIT_ASSIGN_OR_RETURN(base::PendingFile file, base::PendingFile::create(path));
  MOEKIT_RETURN_IF_ERROR(file.append(length_prefix(header.size())));
  MOEKIT_RETURN_IF_ERROR(file.append(header));
  for (const TensorEntry& entry : entries) {
    MOEKIT_RETURN_IF_ERROR(file.append(entry.bytes));
  }
  return file.publish();
}

Status write_safetensors(std::string_view path,
                         const std::vector<TensorToWrite>& tensors,
                         const std::map<std::string, std::string>& metadata) noexcept {
  return base::at_border([&]() -> Status {
    std::vector<TensorEntry> entries;
    for (const TensorToWrite& tensor : tensors) {
      Result<TensorEntry> entry = plan_tensor(tensor);
      if (!entry.has_value()) {
        return entry.status().with_context(cat("tensor ", printable(tensor.name)));
      }
      entries.push_back(std::move(*entry));
    }
    return checkpoint::write_entries(std::string(path), std::move(entries), metadata);
  });
}

}  // namespace moekit
