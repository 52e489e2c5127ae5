// SPDX-License-Identifier: Apache-2.0
#pragma once

// The GGUF container, versions 2 and 3: magic, counts, typed metadata, tensor descriptions, then
// aligned tensor bytes. Reading checks every number against the file before it is used; nothing is
// allocated by a count that the file does not back with bytes.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moekit/status.h"

#include "checkpoint/safetensors.h"

namespace moekit::checkpoint {

/// One tensor type: blocks of `block_elems` elements along the fastest axis in `block_bytes` bytes.
struct GgufType {
  std::uint32_t id;
  std::int64_t block_elems;
  std::int64_t block_bytes;
  ContainerDType dtype;  // of plain types; block types have a name only
};

// Ids, block lengths and block sizes of the GGUF specification and of the gguf package, 0.19.
inline constexpr std::array kGgufTypes{
    GgufType{0, 1, 4, {"F32", 32, DType::kF32}},
    GgufType{1, 1, 2, {"F16", 16, DType::kF16}},
    GgufType{2, 32, 18, {"Q4_0", 0, std::nullopt}},
    GgufType{3, 32, 20, {"Q4_1", 0, std::nullopt}},
    GgufType{6, 32, 22, {"Q5_0", 0, std::nullopt}},
    GgufType{7, 32, 24, {"Q5_1", 0, std::nullopt}},
    GgufType{8, 32, 34, {"Q8_0", 0, std::nullopt}},
    GgufType{9, 32, 40, {"Q8_1", 0, std::nullopt}},
    GgufType{10, 256, 84, {"Q2_K", 0, std::nullopt}},
    GgufType{11, 256, 110, {"Q3_K", 0, std::nullopt}},
    GgufType{12, 256, 144, {"Q4_K", 0, std::nullopt}},
    GgufType{13, 256, 176, {"Q5_K", 0, std::nullopt}},
    GgufType{14, 256, 210, {"Q6_K", 0, std::nullopt}},
    GgufType{15, 256, 292, {"Q8_K", 0, std::nullopt}},
    GgufType{16, 256, 66, {"IQ2_XXS", 0, std::nullopt}},
    GgufType{17, 256, 74, {"IQ2_XS", 0, std::nullopt}},
    GgufType{18, 256, 98, {"IQ3_XXS", 0, std::nullopt}},
    GgufType{19, 256, 50, {"IQ1_S", 0, std::nullopt}},
    GgufType{20, 32, 18, {"IQ4_NL", 0, std::nullopt}},
    GgufType{21, 256, 110, {"IQ3_S", 0, std::nullopt}},
    GgufType{22, 256, 82, {"IQ2_S", 0, std::nullopt}},
    GgufType{23, 256, 136, {"IQ4_XS", 0, std::nullopt}},
    GgufType{24, 1, 1, {"I8", 8, DType::kI8}},
    GgufType{25, 1, 2, {"I16", 16, std::nullopt}},
    GgufType{26, 1, 4, {"I32", 32, DType::kI32}},
    GgufType{27, 1, 8, {"I64", 64, DType::kI64}},
    GgufType{28, 1, 8, {"F64", 64, std::nullopt}},
    GgufType{29, 256, 56, {"IQ1_M", 0, std::nullopt}},
    GgufType{30, 1, 2, {"BF16", 16, DType::kBf16}},
    GgufType{34, 256, 54, {"TQ1_0", 0, std::nullopt}},
    GgufType{35, 256, 66, {"TQ2_0", 0, std::nullopt}},
    GgufType{39, 32, 17, {"MXFP4", 0, std::nullopt}},
    GgufType{40, 64, 36, {"NVFP4", 0, std::nullopt}},
};

/// One metadata value. Arrays keep their numbers up to kMaxKeptNumbers; longer ones and arrays of
/// strings (vocabularies) are checked and skipped.
struct GgufValue {
  std::optional<std::uint64_t> integer{};  // integers that are not negative, and booleans
  std::optional<double> number{};          // every number
  std::optional<bool> boolean{};
  std::optional<std::string> text{};
  std::vector<double> numbers{};
};

inline constexpr std::size_t kMaxKeptNumbers = 4096;

struct GgufContent {
  std::uint32_t version = 0;
  std::map<std::string, GgufValue, std::less<>> metadata{};
  std::vector<TensorEntry> tensors{};  // shapes row-major: the reverse of GGUF's ne; file order
};

/// Whether `file` begins with GGUF's magic.
[[nodiscard]] bool is_gguf(std::span<const std::byte> file);

/// Reads the header of a whole file in memory; entries view `file`.
///
/// Errors  kInvalidArgument  truncated, big-endian or of another version, lengths and counts that
///                           the file does not hold, duplicate or non-UTF-8 names, unknown types,
///                           more than 4 dimensions, rows that are no whole blocks, products past
///                           2^63, offsets unaligned, outside the file or overlapping
[[nodiscard]] Result<GgufContent> parse_gguf(std::span<const std::byte> file);

}  // namespace moekit::checkpoint
