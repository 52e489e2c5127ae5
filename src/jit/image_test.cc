// SPDX-License-Identifier: Apache-2.0
#include "jit/image.h"

#include <array>
#include <set>

#include <gtest/gtest.h>

namespace moekit::jit {
namespace {

constexpr std::array<SourceFile, 3> kImageSources = {
    SourceFile{"a.h", "#include \"b.h\"\nint a;\n", ""},
    SourceFile{"b.h", "int b;\n", ""},
    SourceFile{"c.h", "int c;\n", ""}};

ImageRequest image_request() {
  return {.kernel = "family.recipe.role_t1.sm90a",
          .entry = "family_recipe_role_t1_sm90a",
          .arch = "sm_90a",
          .prelude = "#include \"a.h\"\n"};
}

std::string id_of(const ImageRequest& asked, std::span<const SourceFile> sources = kImageSources) {
  const Result<ResolvedRequest> resolved = resolve_request(asked, sources);
  EXPECT_TRUE(resolved.has_value());
  return resolved ? resolved->image_id : std::string();
}

TEST(ImageId, DependsOnEverythingThatIsCompiledAndOnNothingElse) {
  const std::string base = id_of(image_request());
  EXPECT_EQ(base.size(), 64U);
  EXPECT_EQ(id_of(image_request()), base);

  std::set<std::string> others;
  ImageRequest asked = image_request();
  asked.arch = "sm_80";
  others.insert(id_of(asked));
  asked = image_request();
  asked.options = {"--maxrregcount=64"};
  others.insert(id_of(asked));
  asked = image_request();
  asked.prelude += "// changed\n";
  others.insert(id_of(asked));
  std::array<SourceFile, 3> changed = kImageSources;
  changed[1].text = "int b2;\n";  // reached through a.h
  others.insert(id_of(image_request(), changed));
  changed = kImageSources;
  changed[1].name = "b.h";
  changed[0].text = "#include \"b.h\"\n#include \"c.h\"\nint a;\n";
  others.insert(id_of(image_request(), changed));
  EXPECT_EQ(others.size(), 5U);
  EXPECT_EQ(others.count(base), 0U);

  changed = kImageSources;
  changed[2].text = "int c2;\n";  // not reached
  EXPECT_EQ(id_of(image_request(), changed), base);
}

TEST(CacheKey, AddsTheCompiler) {
  EXPECT_NE(cache_key("id", "13.0"), cache_key("id", "13.1"));
  EXPECT_EQ(cache_key("id", "13.0"), cache_key("id", "13.0"));
}

TEST(EntryName, BeginsWithTheDottedName) {
  EXPECT_EQ(entry_name("a.b.c.sm90a", std::string(64, 'f')), "a.b.c.sm90a-" + std::string(32, 'f'));
}

TEST(CompileOptions, ArchFollowsTheBaseAndTheFamilyComesLast) {
  ImageRequest asked = image_request();
  asked.options = {"--maxrregcount=64"};
  const std::vector<std::string> options = compile_options(asked);
  ASSERT_EQ(options.size(), base_options().size() + 2);
  EXPECT_EQ(options[options.size() - 2], "--gpu-architecture=sm_90a");
  EXPECT_EQ(options.back(), "--maxrregcount=64");
}

}  // namespace
}  // namespace moekit::jit
