// SPDX-License-Identifier: Apache-2.0
#pragma once

// The safetensors container: eight bytes of header length, a JSON header that names tensors, then
// their bytes without holes. Reading checks every number against the file before it is used.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moekit/dtype.h"
#include "moekit/status.h"

namespace moekit::checkpoint {

/// One dtype of the container. `dtype` is empty where moekit has no name for the elements; such
/// tensors are listed, their sizes are checked, and they have no view.
struct ContainerDType {
  std::string_view name;
  int bits;
  std::optional<DType> dtype;
};

// The dtype names of the safetensors crate, 0.6.
inline constexpr std::array kContainerDTypes{
    ContainerDType{"F32", 32, DType::kF32},     ContainerDType{"BF16", 16, DType::kBf16},
    ContainerDType{"F16", 16, DType::kF16},     ContainerDType{"F8_E4M3", 8, DType::kE4m3},
    ContainerDType{"F8_E5M2", 8, DType::kE5m2}, ContainerDType{"F8_E8M0", 8, DType::kE8m0},
    ContainerDType{"F4", 4, DType::kE2m1},      ContainerDType{"I8", 8, DType::kI8},
    ContainerDType{"U8", 8, DType::kU8},        ContainerDType{"I32", 32, DType::kI32},
    ContainerDType{"I64", 64, DType::kI64},     ContainerDType{"BOOL", 8, std::nullopt},
    ContainerDType{"I16", 16, std::nullopt},    ContainerDType{"U16", 16, std::nullopt},
    ContainerDType{"U32", 32, std::nullopt},    ContainerDType{"U64", 64, std::nullopt},
    ContainerDType{"F64", 64, std::nullopt},    ContainerDType{"C64", 64, std::nullopt},
    ContainerDType{"F6_E2M3", 6, std::nullopt}, ContainerDType{"F6_E3M2", 6, std::nullopt},
};

/// The safetensors crate's own limit.
inline constexpr std::int64_t kMaxHeaderBytes = 100'000'000;

struct TensorEntry {
  std::string name;
  const ContainerDType* dtype = nullptr;
  std::vector<std::int64_t> shape{};
  std::span<const std::byte> bytes{};
};

struct SafetensorsContent {
  std::vector<TensorEntry> tensors{};         // in file order
  std::vector<std::string> ignored_fields{};  // unknown fields of tensor entries
  std::map<std::string, std::string> metadata{};
};

/// Reads the header of a whole file in memory; entries view `file`.
///
/// Errors  kInvalidArgument  truncated, header too long, not JSON, duplicate or mis-typed fields,
///                           unknown dtype, shape products past 2^63, offsets outside the file,
///                           sizes that do not fit shape and dtype, overlaps, holes, trailing bytes
[[nodiscard]] Result<SafetensorsContent> parse_safetensors(std::span<const std::byte> file);

/// Writes a file of these entries, widest elements first: temporary file, fsync, rename.
///
/// Errors  kIo               the folder or disk refused
///         kInvalidArgument  duplicate names, text that is not UTF-8
[[nodiscard]] Status write_entries(const std::string& path,
                                   std::vector<TensorEntry> entries,
                                   const std::map<std::string, std::string>& metadata);

}  // namespace moekit::checkpoint
