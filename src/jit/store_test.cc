// SPDX-License-Identifier: Apache-2.0
#include "jit/store.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <latch>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "jit/freeze.h"
#include "jit/nvrtc_fake.h"
#include "jit/test_folder.h"

namespace moekit::jit {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kText = "int shared_header;\n";
constexpr std::array<SourceFile, 1> kSources = {SourceFile{"a.h", kText, ""}};

ImageRequest request(const std::string& name = "f.r.k.sm90a") {
  return {.kernel = name,
          .entry = "k",
          .arch = "sm_90a",
          .prelude = "#include \"a.h\"\n// " + name + "\n"};
}

/// Counts accesses on the way to the real files.
class CountingFiles : public Files {
 public:
  Result<std::optional<EntryContents>> read_entry(const std::string& folder,
                                                  const std::string& name) override {
    reads.push_back(folder + "/" + name);
    return Files::read_entry(folder, name);
  }

  Status publish(const std::string& folder,
                 const std::string& name,
                 const EntryContents& contents,
                 bool replace) override {
    publishes += 1;
    return Files::publish(folder, name, contents, replace);
  }

  std::vector<std::string> reads;
  int publishes = 0;
};

class StoreTest : public testing::Test {
 protected:
  StoreOptions options() {
    return {.bundle_folder = folder.path() + "/bundle",
            .cache_folder = folder.path() + "/cache",
            .open_compiler = [] { return Result<NvrtcTable>(NvrtcFake::table()); },
            .sources = kSources,
            .log = base::Log([this](LogLevel level, std::string_view line) {
              if (level == LogLevel::kWarn) {
                warnings.emplace_back(line);
              }
            })};
  }

  /// Puts the image of `request` into the bundle, as `kernels build` does.
  std::string fill_bundle(const ImageRequest& asked, int nvrtc_major = 13) {
    const ResolvedRequest resolved = *resolve_request(asked, kSources);
    const Image image = *compile_image(NvrtcFake::table(nvrtc_major), resolved);
    const std::string name = entry_name(asked.kernel, resolved.image_id);
    EXPECT_TRUE(
        files
            .publish(folder.path() + "/bundle", name, encode_entry(image, resolved.image_id), false)
            .ok());
    return folder.path() + "/bundle/" + name;
  }

  /// The only entry of the cache.
  std::string cached_entry() {
    std::vector<std::string> names = *files.list(folder.path() + "/cache");
    EXPECT_EQ(names.size(), 1U);
    return folder.path() + "/cache/" + (names.empty() ? "" : names.front());
  }

  static std::int64_t num_compiles() {
    const std::vector<std::string> calls = NvrtcFake::calls();
    return std::count(calls.begin(), calls.end(), "compile_program");
  }

  static void flip_byte(const std::string& path) {
    std::string content = TestFolder::read(path);
    ASSERT_FALSE(content.empty());
    content[content.size() / 2] = static_cast<char>(content[content.size() / 2] ^ 0x40);
    TestFolder::write(path, content);
  }

  TestFolder folder;
  CountingFiles files;
  std::vector<std::string> warnings;
};

TEST_F(StoreTest, MissCompilesPublishesAndIsAMemoryHitFromThenOn) {
  ImageStore store(options(), files);
  const auto first = store.find(request(), 13000);
  ASSERT_TRUE(first.has_value()) << first.status().to_string();
  EXPECT_EQ(store.counts(), (StoreCounts{.locks = 1, .compiles = 1, .published = 1}));
  EXPECT_EQ(files.reads.size(), 3U);  // bundle, cache, cache again behind the lock
  files.reads.clear();
  const std::size_t calls = NvrtcFake::calls().size();
  const auto second = store.find(request(), 13000);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(*first, *second);
  EXPECT_TRUE(files.reads.empty());
  EXPECT_EQ(NvrtcFake::calls().size(), calls);
  EXPECT_TRUE(warnings.empty());
}

TEST_F(StoreTest, AnotherProcessFindsItInTheCache) {
  {
    ImageStore store(options(), files);
    ASSERT_TRUE(store.find(request(), 0).has_value());
  }
  ImageStore store(options(), files);
  ASSERT_TRUE(store.find(request(), 0).has_value());
  EXPECT_EQ(store.counts(), (StoreCounts{.cache_hits = 1}));
  EXPECT_EQ(num_compiles(), 0);
}

TEST_F(StoreTest, AnotherCompilerVersionDoesNotUseIt) {
  {
    ImageStore store(options(), files);
    ASSERT_TRUE(store.find(request(), 0).has_value());
  }
  StoreOptions newer = options();
  newer.open_compiler = [] { return Result<NvrtcTable>(NvrtcFake::table(13, 1)); };
  ImageStore store(newer, files);
  ASSERT_TRUE(store.find(request(), 0).has_value());
  EXPECT_EQ(store.counts().compiles, 1);
  EXPECT_EQ(files.list(folder.path() + "/cache")->size(), 2U);
}

TEST_F(StoreTest, BundleComesBeforeCacheAndNeedsNoCompiler) {
  fill_bundle(request());
  StoreOptions without = options();
  without.open_compiler = [] { return Result<NvrtcTable>(unsupported("hidden")); };
  ImageStore store(without, files);
  files.reads.clear();
  const auto image = store.find(request(), 13000);
  ASSERT_TRUE(image.has_value()) << image.status().to_string();
  EXPECT_EQ(store.counts(), (StoreCounts{.bundle_hits = 1}));
  EXPECT_EQ(files.reads.size(), 1U);
  EXPECT_FALSE(fs::exists(folder.path() + "/cache"));
}

TEST_F(StoreTest, WithoutBundleAndCompilerTheErrorNamesAllThree) {
  StoreOptions without = options();
  without.open_compiler = [] { return Result<NvrtcTable>(unsupported("libnvrtc.so is hidden")); };
  ImageStore store(without, files);
  const Status status = store.find(request(), 13000).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("f.r.k.sm90a"), std::string::npos);
  EXPECT_NE(status.message().find(folder.path() + "/bundle"), std::string::npos);
  EXPECT_NE(status.message().find("libnvrtc.so is hidden"), std::string::npos);
}

TEST_F(StoreTest, OlderDriverIsAnErrorNamingBoth) {
  fill_bundle(request());
  ImageStore store(options(), files);
  const Status status = store.find(request(), 12080).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("needs driver 13000"), std::string::npos);
  EXPECT_NE(status.message().find("the driver is 12080"), std::string::npos);
  EXPECT_TRUE(store.find(request(), 13000).has_value());
}

TEST_F(StoreTest, BadBundleEntryIsIgnoredWithOneWarningAndLeftAlone) {
  const std::string entry = fill_bundle(request());
  std::size_t checked = 0;
  for (const std::string_view file : kEntryFiles) {
    const std::string path = entry + "/" + std::string(file);
    const std::string good = TestFolder::read(path);
    flip_byte(path);
    warnings.clear();
    fs::remove_all(folder.path() + "/cache");
    ImageStore store(options(), files);
    ASSERT_TRUE(store.find(request(), 13000).has_value());
    ASSERT_TRUE(store.find(request(), 13000).has_value());
    EXPECT_EQ(store.counts().compiles, 1);
    ASSERT_EQ(warnings.size(), 1U) << file;
    EXPECT_NE(warnings[0].find("jit.bad_entry entry=" + entry), std::string::npos);
    EXPECT_NE(TestFolder::read(path), good);
    TestFolder::write(path, good);
    ++checked;
  }
  EXPECT_EQ(checked, 3U);
}

TEST_F(StoreTest, BadCacheEntryIsReplacedWithOneWarning) {
  {
    ImageStore store(options(), files);
    ASSERT_TRUE(store.find(request(), 0).has_value());
  }
  std::size_t checked = 0;
  for (const std::string_view file : kEntryFiles) {
    flip_byte(cached_entry() + "/" + std::string(file));
    warnings.clear();
    {
      ImageStore store(options(), files);
      ASSERT_TRUE(store.find(request(), 0).has_value());
      EXPECT_EQ(store.counts().compiles, 1);
      EXPECT_EQ(store.counts().published, 1);
      EXPECT_EQ(warnings.size(), 1U) << file;
    }
    ImageStore store(options(), files);
    ASSERT_TRUE(store.find(request(), 0).has_value());
    EXPECT_EQ(store.counts().cache_hits, 1) << file;
    ++checked;
  }
  EXPECT_EQ(checked, 3U);
}

TEST_F(StoreTest, TruncatedAndMissingCacheFilesAreReplaced) {
  ASSERT_TRUE(ImageStore(options(), files).find(request(), 0).has_value());
  fs::resize_file(cached_entry() + "/kernel.cubin", 10);
  ASSERT_TRUE(ImageStore(options(), files).find(request(), 0).has_value());
  fs::remove(cached_entry() + "/meta.json");
  ASSERT_TRUE(ImageStore(options(), files).find(request(), 0).has_value());
  ImageStore store(options(), files);
  ASSERT_TRUE(store.find(request(), 0).has_value());
  EXPECT_EQ(store.counts().cache_hits, 1);
}

TEST_F(StoreTest, ChangedHeaderIsAnotherImage) {
  ASSERT_TRUE(ImageStore(options(), files).find(request(), 0).has_value());
  constexpr std::array<SourceFile, 1> kChanged = {SourceFile{"a.h", "int other;\n", ""}};
  StoreOptions changed = options();
  changed.sources = kChanged;
  ImageStore store(changed, files);
  ASSERT_TRUE(store.find(request(), 0).has_value());
  EXPECT_EQ(store.counts().compiles, 1);
}

TEST_F(StoreTest, CacheModesAreKept) {
  StoreOptions off = options();
  off.cache_mode = base::CacheMode::kOff;
  ImageStore store_off(off, files);
  ASSERT_TRUE(store_off.find(request(), 0).has_value());
  EXPECT_EQ(files.publishes, 0);
  EXPECT_EQ(files.reads.size(), 1U);  // the bundle alone
  StoreOptions read_only = options();
  read_only.cache_mode = base::CacheMode::kReadOnly;
  ImageStore store_read_only(read_only, files);
  ASSERT_TRUE(store_read_only.find(request(), 0).has_value());
  EXPECT_EQ(files.publishes, 0);
  EXPECT_TRUE(warnings.empty());
}

TEST_F(StoreTest, FolderThatCannotBeMadeIsOneWarningAndNoError) {
  TestFolder::write(folder.path() + "/file", "not a folder");
  StoreOptions blocked = options();
  blocked.cache_folder = folder.path() + "/file/cache";
  ImageStore store(blocked, files);
  ASSERT_TRUE(store.find(request("f.r.one.sm90a"), 0).has_value());
  ASSERT_TRUE(store.find(request("f.r.two.sm90a"), 0).has_value());
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("jit.cache_not_written"), std::string::npos);
  EXPECT_EQ(store.counts().published, 0);
}

/// Runs `body` in a child process and returns its exit code, or 128 + signal.
template <typename Body>
int in_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST_F(StoreTest, ReadOnlyFolderIsNoError) {
  const std::string cache = folder.path() + "/cache";
  fs::create_directory(cache);
  // Readable and not writable, for whatever group the child is in.
  fs::permissions(folder.path(), static_cast<fs::perms>(0755));
  fs::permissions(cache, static_cast<fs::perms>(0555));
  const int code = in_child([&] {
    // The superuser may write anywhere: give that up first.
    if (::geteuid() == 0 && ::setuid(65534) != 0) {
      return 10;
    }
    ImageStore store(options(), files);
    const bool found = store.find(request(), 0).has_value();
    return found && store.counts().published == 0 && warnings.size() == 1 ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(fs::is_empty(cache));
  fs::permissions(cache, fs::perms::owner_all);
}

TEST_F(StoreTest, FullDiskIsNoErrorAndLeavesNothingBehind) {
  const int code = in_child([&] {
    // A limit on file size stands for a disk without room: write() fails half way.
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {1000, 1000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) {
      return 10;
    }
    ImageStore store(options(), files);
    const bool found = store.find(request(), 0).has_value();
    return found && store.counts().published == 0 && warnings.size() == 1 ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(fs::is_empty(folder.path() + "/cache"));
}

TEST_F(StoreTest, ThreadsThatWantOneKeyCompileOnce) {
  ImageStore store(options(), files);
  // The compiler is opened by whoever comes first; a slow compilation keeps the others waiting.
  StoreOptions slow = options();
  slow.open_compiler = [] {
    Result<NvrtcTable> table = NvrtcFake::table();
    NvrtcFake::take(50);
    return table;
  };
  Files plain;
  ImageStore shared(slow, plain);
  constexpr int kThreads = 8;
  std::latch start(kThreads);
  std::atomic<int> found{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        start.arrive_and_wait();
        found += shared.find(request(), 13000).has_value() ? 1 : 0;
      });
    }
  }
  EXPECT_EQ(found, kThreads);
  EXPECT_EQ(shared.counts().compiles, 1);
  EXPECT_EQ(shared.counts().published, 1);
  EXPECT_EQ(num_compiles(), 1);
}

TEST_F(StoreTest, ThreadsWithDifferentKeysDoNotWaitForEachOther) {
  StoreOptions slow = options();
  slow.open_compiler = [] {
    Result<NvrtcTable> table = NvrtcFake::table();
    NvrtcFake::take(5);
    return table;
  };
  Files plain;
  ImageStore shared(slow, plain);
  std::atomic<int> found{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        for (int k = 0; k < 6; ++k) {
          found += shared.find(request(base::cat("f.r.k", (i + k) % 6, ".sm90a")), 0) ? 1 : 0;
        }
      });
    }
  }
  EXPECT_EQ(found, 24);
  EXPECT_EQ(shared.counts().compiles, 6);
}

TEST(FreezeGate, CarriesItsReason) {
  FreezeGate gate;
  EXPECT_FALSE(gate.frozen());
  gate.freeze("warm-up of the engine is over");
  EXPECT_TRUE(gate.frozen());
  EXPECT_EQ(gate.reason(), "warm-up of the engine is over");
  gate.freeze("second");
  EXPECT_EQ(gate.reason(), "second");
  gate.unfreeze("reload");
  EXPECT_FALSE(gate.frozen());
  EXPECT_EQ(gate.reason(), "reload");
}

}  // namespace
}  // namespace moekit::jit
