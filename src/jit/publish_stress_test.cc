// SPDX-License-Identifier: Apache-2.0

// Real processes on one cache folder: killed at every stage of publishing, and racing.

#include <csignal>
#include <filesystem>
#include <map>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "jit/nvrtc_fake.h"
#include "jit/store.h"
#include "jit/test_folder.h"

namespace moekit::jit {
namespace {

namespace fs = std::filesystem;

constexpr std::array<SourceFile, 1> kSources = {SourceFile{"a.h", "int shared_header;\n", ""}};

ImageRequest request(int index = 0) {
  return {.kernel = base::cat("f.r.k", index, ".sm90a"),
          .entry = "k",
          .arch = "sm_90a",
          .prelude = base::cat("#include \"a.h\"\n// ", index, "\n")};
}

StoreOptions options(const std::string& folder, base::Log log = {}) {
  return {.cache_folder = folder,
          .open_compiler = [] { return Result<NvrtcTable>(NvrtcFake::table()); },
          .sources = kSources,
          .log = std::move(log)};
}

/// Kills its own process at the n-th stage that it reaches.
class DyingFiles : public Files {
 public:
  explicit DyingFiles(int stage) : left_(stage) {}

 protected:
  void reached(PublishStage) override {
    if (left_-- == 0) {
      ::kill(::getpid(), SIGKILL);
    }
  }

 private:
  int left_;
};

/// A child that finds the image with files that die at `stage`; true when it was killed.
bool killed_at(const std::string& folder, int stage) {
  const pid_t child = ::fork();
  if (child == 0) {
    DyingFiles files(stage);
    ImageStore store(options(folder), files);
    ::_exit(store.find(request(), 0).has_value() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  if (WIFSIGNALED(status)) {
    EXPECT_EQ(WTERMSIG(status), SIGKILL);
    return true;
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
  return false;
}

/// After a crash: never a half entry, and the next process is served without a warning.
void expect_whole(const std::string& folder, int stage, int allowed_warnings) {
  std::vector<std::string> warnings;
  const base::Log log([&](LogLevel level, std::string_view line) {
    if (level == LogLevel::kWarn) {
      warnings.emplace_back(line);
    }
  });
  Files files;
  ImageStore store(options(folder, log), files);
  const auto image = store.find(request(), 0);
  ASSERT_TRUE(image.has_value()) << "stage " << stage << ": " << image.status().to_string();
  EXPECT_LE(static_cast<int>(warnings.size()), allowed_warnings) << "stage " << stage;
  ImageStore again(options(folder), files);
  ASSERT_TRUE(again.find(request(), 0).has_value());
  EXPECT_EQ(again.counts().cache_hits, 1) << "stage " << stage;
}

TEST(PublishCrash, KillAtEveryStageLeavesNoHalfEntry) {
  int stages = 0;
  for (;; ++stages) {
    const TestFolder folder;
    if (!killed_at(folder.path(), stages)) {
      break;
    }
    expect_whole(folder.path(), stages, 0);
  }
  // folder made, three files times (opened, written, synced), folder synced, renamed
  EXPECT_EQ(stages, 12);
}

TEST(PublishCrash, KillAtEveryStageOfAReplacement) {
  int stages = 0;
  for (;; ++stages) {
    const TestFolder folder;
    Files files;
    ASSERT_TRUE(ImageStore(options(folder.path()), files).find(request(), 0).has_value());
    const std::string entry = folder.path() + "/" + files.list(folder.path())->front();
    fs::resize_file(entry + "/kernel.cubin", 5);
    if (!killed_at(folder.path(), stages)) {
      break;
    }
    expect_whole(folder.path(), stages, 1);  // the bad entry may still be there
  }
  EXPECT_EQ(stages, 13);  // and: the bad entry moved aside
}

int race_child(const std::string& folder, int gate, int rounds) {
  char start = 0;
  if (::read(gate, &start, 1) != 0) {  // ends when the parent closes its end
    return 2;
  }
  int warnings = 0;
  const base::Log log(
      [&](LogLevel level, std::string_view) { warnings += level == LogLevel::kWarn ? 1 : 0; });
  for (int round = 0; round < rounds; ++round) {
    Files files;
    ImageStore store(options(folder, log), files);
    const auto image = store.find(request(round), 0);
    if (!image.has_value()) {
      return 3;
    }
    const ResolvedRequest resolved = *resolve_request(request(round), kSources);
    const std::string source = base::cat(request(round).prelude, "\na.h\n", kSources[0].text);
    if ((*image)->cubin != NvrtcFake::cubin_of(source, compile_options(resolved.request))) {
      return 4;
    }
  }
  return warnings == 0 ? 0 : 5;
}

TEST(PublishRace, ProcessesThatCompileTheSameKeysAllSucceedAndNeverReadAHalf) {
  constexpr int kProcesses = 6;
  constexpr int kRounds = 40;
  const TestFolder folder;
  std::array<int, 2> gate{};
  ASSERT_EQ(::pipe(gate.data()), 0);
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(gate[1]);
      ::_exit(race_child(folder.path(), gate[0], kRounds));
    }
    children.push_back(child);
  }
  ::close(gate[0]);
  ::close(gate[1]);  // all start now
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  Files files;
  const std::vector<std::string> names = *files.list(folder.path());
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kRounds));  // no temporary folder is left
  for (const std::string& name : names) {
    EXPECT_TRUE(decode_entry(**files.read_entry(folder.path(), name), "").has_value()) << name;
  }
}

TEST(PublishRace, ReadersSeeWholeEntriesWhileAnotherProcessReplacesThem) {
  const TestFolder folder;
  Files files;
  ASSERT_TRUE(ImageStore(options(folder.path()), files).find(request(), 0).has_value());
  const std::string name = files.list(folder.path())->front();
  const EntryContents contents = **files.read_entry(folder.path(), name);
  const pid_t writer = ::fork();
  if (writer == 0) {
    Files own;
    for (int i = 0; i < 300; ++i) {
      if (!own.publish(folder.path(), name, contents, true).ok()) {
        ::_exit(1);
      }
    }
    ::_exit(0);
  }
  std::map<bool, int> outcomes;
  int status = 0;
  while (::waitpid(writer, &status, WNOHANG) == 0) {
    const Result<std::optional<EntryContents>> read = files.read_entry(folder.path(), name);
    if (!read.has_value() || !read->has_value()) {
      outcomes[false] += 1;  // between the two renames: a miss
      continue;
    }
    // A reader that opened the old folder may find its files being removed: missing, never mixed
    // and never cut.
    const EntryContents& got = **read;
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_TRUE(got[i].empty() || got[i] == contents[i]) << kEntryFiles[i];
    }
    outcomes[true] += 1;
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_GE(outcomes[true], 10);
}

}  // namespace
}  // namespace moekit::jit
