// SPDX-License-Identifier: Apache-2.0
#include "base/hash.h"

#include <gtest/gtest.h>

namespace moekit::base {
namespace {

// NIST, "Examples with Intermediate Values" for SHA-256, and the empty message.
TEST(Sha256, PublishedVectors) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesGiveTheDigestOfTheWhole) {
  std::string text;
  for (int i = 0; i < 300; ++i) {
    text.push_back(static_cast<char>(i * 7));
  }
  int checked = 0;
  for (std::size_t cut = 0; cut <= text.size(); ++cut, ++checked) {
    Sha256 hash;
    hash.update(std::string_view(text).substr(0, cut));
    hash.update(std::string_view(text).substr(cut));
    ASSERT_EQ(hash.finish_hex(), sha256_hex(text)) << "cut at " << cut;
  }
  EXPECT_EQ(checked, 301);
}

TEST(Sha256, FieldsDoNotRunTogether) {
  Sha256 left;
  left.update_field("ab");
  left.update_field("c");
  Sha256 right;
  right.update_field("a");
  right.update_field("bc");
  EXPECT_NE(left.finish_hex(), right.finish_hex());
}

TEST(StableHash, IsThePrefixOfTheDigest) {
  EXPECT_EQ(stable_hash64("abc"), 0xba7816bf8f01cfeaULL);
}

}  // namespace
}  // namespace moekit::base
