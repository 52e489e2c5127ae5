// SPDX-License-Identifier: Apache-2.0
#include "jit/entry.h"

#include <gtest/gtest.h>

namespace moekit::jit {
namespace {

Image image() {
  return {.facts = {.kernel = "f.r.k.sm90a",
                    .entry = "f_r_k_sm90a",
                    .arch = "sm_90a",
                    .image_id = std::string(64, 'a'),
                    .nvrtc_version = "13.0",
                    .options = {"-std=c++20", "--gpu-architecture=sm_90a"},
                    .min_driver = 13000,
                    .registers = 40,
                    .smem_bytes = 1024,
                    .stack_bytes = 0,
                    .spill_store_bytes = 4,
                    .spill_load_bytes = 8,
                    .compile_ms = 412},
          .cubin = std::string("\x7f"
                               "ELF\0\1\2\xff",
                               8),
          .source = "int x;\n"};
}

TEST(Entry, RoundTrip) {
  const Image original = image();
  const Result<Image> back = decode_entry(encode_entry(original, "key"), "key");
  ASSERT_TRUE(back.has_value()) << back.status().to_string();
  EXPECT_EQ(back->facts, original.facts);
  EXPECT_EQ(back->cubin, original.cubin);
  EXPECT_EQ(back->source, original.source);
  EXPECT_TRUE(decode_entry(encode_entry(original, "key"), "").has_value());
}

TEST(Entry, EveryFlippedBitOfEveryFileIsSeen) {
  const EntryContents good = encode_entry(image(), "key");
  std::size_t checked = 0;
  for (std::size_t file = 0; file < good.size(); ++file) {
    for (std::size_t byte = 0; byte < good[file].size(); ++byte) {
      for (int bit = 0; bit < 8; ++bit) {
        EntryContents bad = good;
        bad[file][byte] = static_cast<char>(bad[file][byte] ^ (1 << bit));
        ASSERT_FALSE(decode_entry(bad, "key").has_value())
            << kEntryFiles[file] << " byte " << byte << " bit " << bit;
        ++checked;
      }
    }
  }
  EXPECT_GE(checked, 8U * 700U);
}

TEST(Entry, TruncatedExtendedAndMissingFilesAreSeen) {
  const EntryContents good = encode_entry(image(), "key");
  for (std::size_t file = 0; file < good.size(); ++file) {
    for (std::size_t length = 0; length < good[file].size(); ++length) {
      EntryContents bad = good;
      bad[file].resize(length);
      ASSERT_FALSE(decode_entry(bad, "key").has_value()) << kEntryFiles[file] << " at " << length;
    }
    EntryContents longer = good;
    longer[file] += "\n";
    EXPECT_FALSE(decode_entry(longer, "key").has_value());
  }
  EntryContents missing = good;
  missing[0].clear();
  EXPECT_EQ(decode_entry(missing, "key").status().message(), "kernel.cubin is missing or empty");
}

TEST(Entry, AnotherKeysEntryIsRefusedNamingBoth) {
  const Status status = decode_entry(encode_entry(image(), "one"), "two").status();
  EXPECT_EQ(status.message(), "entry of key one, expected two");
}

TEST(Entry, HostileMetaIsAnErrorNotACrash) {
  EntryContents contents = encode_entry(image(), "key");
  for (const char* meta : {"null", "[]", "{", "{}", "{\"schema\":\"x\"}", "{\"checksum\":1}"}) {
    contents[2] = meta;
    EXPECT_FALSE(decode_entry(contents, "key").has_value()) << meta;
  }
}

}  // namespace
}  // namespace moekit::jit
