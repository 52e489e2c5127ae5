// SPDX-License-Identifier: Apache-2.0

// PackedExperts as a file: a text header of kHeaderBytes, then the bytes as bind wants them. The
// header's length keeps the mapping aligned to kPackedAlignment (mappings begin on pages).

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "moekit/experts.h"

#include "base/border.h"
#include "base/cpu_info.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/text.h"
#include "runtime/state.h"

namespace moekit {
namespace {

using base::cat;

constexpr std::string_view kMagic = "moekit packed experts\n";
constexpr std::size_t kHeaderBytes = 4096;
static_assert(kHeaderBytes % kPackedAlignment == 0);

// Chunks hash side by side; the file's checksum is the digest of their digests.
constexpr std::size_t kChunkBytes = std::size_t{8} << 20;

Result<std::string> checksum(std::span<const std::byte> bytes) {
  const std::size_t num_chunks = (bytes.size() + kChunkBytes - 1) / kChunkBytes;
  std::vector<base::Sha256::Digest> digests(num_chunks);
  const auto threads = std::min<std::size_t>(static_cast<std::size_t>(base::detect_cpu().threads),
                                             std::max<std::size_t>(num_chunks, 1));
  MOEKIT_ASSIGN_OR_RETURN(const auto pool, base::ThreadPool::create(static_cast<int>(threads)));
  pool->parallel([&](int worker, int num_workers) {
    for (auto chunk = static_cast<std::size_t>(worker); chunk < num_chunks;
         chunk += static_cast<std::size_t>(num_workers)) {
      const std::size_t begin = chunk * kChunkBytes;
      base::Sha256 hash;
      hash.update(bytes.subspan(begin, std::min(kChunkBytes, bytes.size() - begin)));
      digests[chunk] = hash.finish();
    }
  });
  base::Sha256 total;
  for (const base::Sha256::Digest& digest : digests) {
    total.update(std::as_bytes(std::span(digest)));
  }
  return total.finish_hex();
}

/// The lines that must agree with the plan that maps the file.
std::string identity(const plan::PackedLayout& layout, const Problem& problem) {
  return cat("layout_id=",
             layout.id,
             " experts=",
             problem.num_experts,
             " gate_up_bias=",
             problem.gate_up_bias,
             " down_bias=",
             problem.down_bias,
             " bytes=",
             layout.total_bytes);
}

// Counts up when a layout's bytes change under the same layout_id. 2: panel16's E4M3 rows are words
// of 4 columns.
constexpr std::string_view kSchemaLine = "schema=2";

/// `magic schema=2 \n identity \n sha256=… \n`, then zeros.
std::string header_text(const std::string& identity_line, const std::string& digest) {
  std::string text = cat(kMagic, kSchemaLine, "\n", identity_line, "\n", "sha256=", digest, "\n");
  text.resize(std::max(text.size(), kHeaderBytes), '\0');
  return text;
}

struct Header {
  std::string identity{};
  std::string digest{};
};

/// The line at the front of `text`, which loses it.
std::string_view take_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

Result<Header> read_header(std::span<const std::byte> file, const std::string& path) {
  std::string_view text(reinterpret_cast<const char*>(file.data()),
                        std::min(file.size(), kHeaderBytes));
  if (text.size() < kHeaderBytes || !text.starts_with(kMagic)) {
    return invalid_argument(cat(path, " is no file of packed experts"));
  }
  text.remove_prefix(kMagic.size());
  const std::string_view schema = take_line(text);
  if (schema != kSchemaLine) {
    return invalid_argument(cat(path, " has another schema, expected ", kSchemaLine));
  }
  Header header;
  header.identity = std::string(take_line(text));
  const std::string_view digest = take_line(text);
  constexpr std::string_view kDigest = "sha256=";
  if (!digest.starts_with(kDigest)) {
    return invalid_argument(cat(path, " has a header without a checksum"));
  }
  header.digest = std::string(digest.substr(kDigest.size()));
  return header;
}

/// Header text comes from a file: only what could stand there is shown.
std::string shown(const std::string& text) {
  std::string safe = text.substr(0, 300);
  std::replace_if(
      safe.begin(), safe.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return safe;
}

Status check_file(std::span<const std::byte> file,
                  const Header& header,
                  const std::string& path,
                  const PackedExperts::State& state) {
  const std::string wanted = identity(state.layout, state.problem);
  if (header.identity != wanted) {
    return failed_precondition(
        cat(path, " holds ", shown(header.identity), ", the plan needs ", wanted));
  }
  const auto expected = kHeaderBytes + static_cast<std::size_t>(state.layout.total_bytes);
  if (file.size() != expected) {
    return invalid_argument(cat(path, " has ", file.size(), " bytes, expected ", expected));
  }
  return {};
}

}  // namespace

Status save_packed_experts(const PackedExperts& packed, std::string_view path) noexcept {
  return base::at_border([&]() -> Status {
    const PackedExperts::State* state = packed.state();
    if (state == nullptr || state->on_device) {
      return invalid_argument(state == nullptr ? "experts were not prepared"
                                               : "experts are on a device; save what was uploaded");
    }
    MOEKIT_ASSIGN_OR_RETURN(const std::string digest, checksum(packed.bytes()));
    const std::string header = header_text(identity(state->layout, state->problem), digest);
    if (header.size() != kHeaderBytes) {
      return internal_error(cat("header of ", header.size(), " bytes, at most ", kHeaderBytes));
    }
    MOEKIT_ASSIGN_OR_RETURN(base::PendingFile file, base::PendingFile::create(std::string(path)));
    MOEKIT_RETURN_IF_ERROR(file.append(header));
    MOEKIT_RETURN_IF_ERROR(file.append(packed.bytes()));
    return file.publish();
  });
}

Result<PackedExperts> map_packed_experts(const Plan& plan,
                                         std::string_view path,
                                         PackedFileCheck check) noexcept {
  return base::at_border([&]() -> Result<PackedExperts> {
    const std::string name(path);
    MOEKIT_ASSIGN_OR_RETURN(base::MappedFile file, base::MappedFile::open(name));
    auto state = std::make_shared<PackedExperts::State>();
    state->problem = plan.problem();
    MOEKIT_ASSIGN_OR_RETURN(state->layout, plan::packed_layout(state->problem, plan->device));
    state->layout_id = state->layout.id;
    state->bytes = state->layout.total_bytes;
    MOEKIT_ASSIGN_OR_RETURN(const Header header, read_header(file.bytes(), name));
    MOEKIT_RETURN_IF_ERROR(check_file(file.bytes(), header, name, *state));
    state->mapped = std::make_shared<base::MappedFile>(std::move(file));
    const std::span<const std::byte> bytes = state->mapped->bytes().subspan(kHeaderBytes);
    if (check == PackedFileCheck::kHeaderAndBytes) {
      MOEKIT_ASSIGN_OR_RETURN(const std::string digest, checksum(bytes));
      if (digest != header.digest) {
        return invalid_argument(
            cat(name, " has the checksum ", digest, ", its header says ", shown(header.digest)));
      }
    }
    // Nobody writes through `base`: prepare writes before it hands out, bind and run only read.
    state->base = const_cast<std::byte*>(bytes.data());
    state->expert_without_input_scale =
        plan::PackedView{&state->layout, state->base}.first_without_input_scales();
    return PackedExperts(std::move(state));
  });
}

}  // namespace moekit
