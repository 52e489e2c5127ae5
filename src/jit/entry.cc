// SPDX-License-Identifier: Apache-2.0
#include "jit/entry.h"

#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/json_document.h"
#include "base/text.h"

namespace moekit::jit {
namespace {

using Json = nlohmann::json;
using Document = base::JsonDocument<Json>;

constexpr std::size_t kCubin = 0;
constexpr std::size_t kSource = 1;
constexpr std::size_t kMeta = 2;

// Replaces bytes that are not UTF-8 instead of throwing: nothing of ours holds any.
std::string dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string with_checksum(Document& meta) {
  base::take_apart((*meta)["checksum"]);  // whatever it was
  meta->erase("checksum");
  base::set_member(*meta, "checksum", base::sha256_hex(dump(*meta)));
  return dump(*meta);
}

void write_file_facts(Json& facts, std::string_view content) {
  base::set_member(facts, "bytes", content.size());
  base::set_member(facts, "sha256", base::sha256_hex(content));
}

void write_meta(Json& meta, const Image& image, std::string_view key) {
  const ImageFacts& facts = image.facts;
  base::set_member(meta, "schema", kImageSchema);
  base::set_member(meta, "key", key);
  base::set_member(meta, "image_id", facts.image_id);
  base::set_member(meta, "kernel", facts.kernel);
  base::set_member(meta, "entry", facts.entry);
  base::set_member(meta, "arch", facts.arch);
  base::set_member(meta, "nvrtc", facts.nvrtc_version);
  base::set_member(meta, "options", facts.options);
  base::set_member(meta, "min_driver", facts.min_driver);
  base::set_member(meta, "registers", facts.registers);
  base::set_member(meta, "smem_bytes", facts.smem_bytes);
  base::set_member(meta, "stack_bytes", facts.stack_bytes);
  base::set_member(meta, "spill_store_bytes", facts.spill_store_bytes);
  base::set_member(meta, "spill_load_bytes", facts.spill_load_bytes);
  base::set_member(meta, "compile_ms", facts.compile_ms);
  Json& files = base::member(meta, "files");
  write_file_facts(base::member(files, kEntryFiles[kCubin]), image.cubin);
  write_file_facts(base::member(files, kEntryFiles[kSource]), image.source);
}

// get_to throws on a wrong type; these are called only after the checksum matched, so that what is
// read is what encode_entry wrote. The schema guards against another layout.
ImageFacts facts_of(const Json& meta) {
  ImageFacts facts;
  meta.at("image_id").get_to(facts.image_id);
  meta.at("kernel").get_to(facts.kernel);
  meta.at("entry").get_to(facts.entry);
  meta.at("arch").get_to(facts.arch);
  meta.at("nvrtc").get_to(facts.nvrtc_version);
  meta.at("options").get_to(facts.options);
  meta.at("min_driver").get_to(facts.min_driver);
  meta.at("registers").get_to(facts.registers);
  meta.at("smem_bytes").get_to(facts.smem_bytes);
  meta.at("stack_bytes").get_to(facts.stack_bytes);
  meta.at("spill_store_bytes").get_to(facts.spill_store_bytes);
  meta.at("spill_load_bytes").get_to(facts.spill_load_bytes);
  meta.at("compile_ms").get_to(facts.compile_ms);
  return facts;
}

Status check_file(const Json& meta, std::size_t index, std::string_view content) {
  const std::string_view name = kEntryFiles[index];
  const Json& facts = meta.at("files").at(std::string(name));
  const std::size_t bytes = facts.at("bytes").get<std::size_t>();
  if (content.size() != bytes) {
    return invalid_argument(
        base::cat(name, " has ", content.size(), " bytes, meta.json says ", bytes));
  }
  if (base::sha256_hex(content) != facts.at("sha256").get<std::string>()) {
    return invalid_argument(base::cat(name, " does not match its checksum"));
  }
  return {};
}

Result<Image> decode_checked(const Json& meta,
                             EntryContents& contents,
                             std::string_view expected_key) {
  if (const int schema = meta.at("schema").get<int>(); schema != kImageSchema) {
    return invalid_argument(base::cat("schema ", schema, ", expected ", kImageSchema));
  }
  const std::string key = meta.at("key").get<std::string>();
  if (!expected_key.empty() && key != expected_key) {
    return invalid_argument(base::cat("entry of key ", key, ", expected ", expected_key));
  }
  for (const std::size_t index : {kCubin, kSource}) {
    MOEKIT_RETURN_IF_ERROR(check_file(meta, index, contents[index]));
  }
  return Image{.facts = facts_of(meta),
               .cubin = std::move(contents[kCubin]),
               .source = std::move(contents[kSource])};
}

}  // namespace

EntryContents encode_entry(const Image& image, std::string_view key) {
  Document meta;
  write_meta(*meta, image, key);
  return {image.cubin, image.source, with_checksum(meta)};
}

Result<Image> decode_entry(EntryContents contents, std::string_view expected_key) {
  for (std::size_t i = 0; i < contents.size(); ++i) {
    if (contents[i].empty()) {
      return invalid_argument(base::cat(kEntryFiles[i], " is missing or empty"));
    }
  }
  Result<Document> meta = base::parse_json<Json>(contents[kMeta]);
  if (!meta.has_value()) {
    return meta.status().with_context("meta.json");
  }
  if (!(*meta)->is_object()) {
    return invalid_argument("meta.json is not a JSON object");
  }
  if (with_checksum(*meta) != contents[kMeta]) {
    return invalid_argument("meta.json does not match its checksum");
  }
  try {
    return decode_checked(**meta, contents, expected_key);
  } catch (const Json::exception& error) {
    // A checksum is no proof of who wrote the file.
    return invalid_argument(base::cat("meta.json: ", error.what()));
  }
}

}  // namespace moekit::jit
