// SPDX-License-Identifier: Apache-2.0

// The catalogue through the real compiler, without a GPU: every kernel for every arch, the bundle
// made of them, and a fake driver that prewarms from it.

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>

#include <gtest/gtest.h>

#include "moekit/kernels.h"

#include "cuda/kernel_table.h"
#include "jit/bundle.h"
#include "jit/compile.h"
#include "jit/test_folder.h"
#include "kernels/catalog.h"
#include "runtime/kernel_folders.h"
#include "runtime/test_fake_cuda.h"

namespace moekit {
namespace {

namespace fs = std::filesystem;

/// One bundle for all tests of the program: compiling is what takes time here.
class Bundle : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const Result<jit::NvrtcTable> nvrtc = open_environment_nvrtc();
    if (!nvrtc) {
      reason = nvrtc.status().message();
      return;
    }
    folder = std::make_unique<jit::TestFolder>();
    const Result<std::vector<KernelImage>> built =
        build_kernels({.archs = {plan::kCudaArchs.begin(), plan::kCudaArchs.end()},
                       .output = folder->path(),
                       .progress = [](const BuildProgress& progress) {
                         last_progress = progress.kernels_done;
                         return true;
                       }});
    ASSERT_TRUE(built.has_value()) << built.status().to_string();
    images = *built;
  }

  static void TearDownTestSuite() { folder.reset(); }

  void SetUp() override {
    if (folder == nullptr) {
      GTEST_SKIP() << reason;
    }
  }

  static std::size_t num_sources(Arch arch) {
    std::size_t count = 0;
    for (const kernels::CudaEntry& entry : kernels::cuda_catalog()) {
      count += entry.cuda->catalog(arch).size();
    }
    return count;
  }

  static inline std::unique_ptr<jit::TestFolder> folder;
  static inline std::string reason;
  static inline std::vector<KernelImage> images;
  static inline std::int64_t last_progress = 0;
};

TEST_F(Bundle, HoldsEveryKernelOfEveryArchItClaims) {
  std::size_t expected = 0;
  for (const Arch arch : plan::kCudaArchs) {
    expected += num_sources(arch);
  }
  EXPECT_GE(expected, 3U * plan::kCudaArchs.size());
  EXPECT_EQ(images.size(), expected);
  EXPECT_EQ(last_progress, static_cast<std::int64_t>(expected));
  const Result<KernelListing> listing = list_kernels(folder->path());
  ASSERT_TRUE(listing.has_value());
  EXPECT_EQ(listing->images.size(), expected);
  EXPECT_TRUE(listing->problems.empty());
  EXPECT_TRUE(listing->missing.empty());
}

/// Kernels whose README says why: two registers put aside once, before the steps.
constexpr std::array<std::string_view, 2> kSpillOnce = {
    "decode_gemv.w4a16_nvfp4.down_w16r2k2a0c8i3b2x1.sm90a",
    "decode_gemv.w4a16_nvfp4.down_w16r4k2a0c8i3b2x1.sm90a"};

TEST_F(Bundle, SpillsAndStackAreZeroButWhereTheReadmeSaysWhy) {
  std::size_t checked = 0;
  std::size_t spilling = 0;
  for (const KernelImage& image : images) {
    const bool once =
        std::find(kSpillOnce.begin(), kSpillOnce.end(), image.kernel) != kSpillOnce.end();
    spilling += once && image.spill_bytes > 0 ? 1 : 0;
    EXPECT_LE(image.spill_bytes, once ? 16 : 0) << image.kernel;
    EXPECT_LE(image.stack_bytes, once ? 8 : 0) << image.kernel;
    EXPECT_GT(image.registers, 0) << image.kernel;
    ++checked;
  }
  EXPECT_GE(checked, 21U);
  EXPECT_EQ(spilling, kSpillOnce.size()) << "one of them no longer does: take it from the list";
}

TEST_F(Bundle, BuildingAgainKeepsEveryEntryAndReplacesABadOne) {
  const std::string victim = images.front().kernel;
  std::string cubin;
  for (const auto& entry : fs::directory_iterator(folder->path())) {
    if (entry.path().filename().string().starts_with(victim + "-")) {
      cubin = (entry.path() / "kernel.cubin").string();
    }
  }
  ASSERT_FALSE(cubin.empty());
  const std::string good = jit::TestFolder::read(cubin);
  jit::TestFolder::write(cubin, good.substr(1));
  const Arch arch = *plan::arch_from_suffix(victim.substr(victim.rfind('.') + 1));
  const Result<std::vector<KernelImage>> again =
      build_kernels({.archs = {arch}, .output = folder->path()});
  ASSERT_TRUE(again.has_value()) << again.status().to_string();
  EXPECT_EQ(jit::TestFolder::read(cubin), good);
  EXPECT_TRUE(list_kernels(folder->path())->problems.empty());
}

TEST_F(Bundle, AFlippedByteAnywhereIsDetected) {
  // One kernel's entry, every file, bytes all over; entry_test flips every bit of a small one.
  const jit::TestFolder copy;
  const std::string entry = fs::directory_iterator(folder->path())->path().filename().string();
  fs::copy(folder->path() + "/" + entry, copy.path() + "/" + entry);
  std::size_t checked = 0;
  for (const std::string_view file : jit::kEntryFiles) {
    const std::string path = copy.path() + "/" + entry + "/" + std::string(file);
    const std::string good = jit::TestFolder::read(path);
    for (std::size_t at = 0; at < good.size(); at += 1 + good.size() / 50) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 1);
      jit::TestFolder::write(path, bad);
      ASSERT_EQ(list_kernels(copy.path())->problems.size(), 1U) << file << " byte " << at;
      ++checked;
    }
    jit::TestFolder::write(path, good);
  }
  EXPECT_GE(checked, 120U);
  EXPECT_TRUE(list_kernels(copy.path())->problems.empty());
}

TEST_F(Bundle, AnEntryUnderAnotherNameIsAProblemAndAMissingOneIsNamed) {
  const jit::TestFolder copy;
  fs::copy(folder->path(), copy.path(), fs::copy_options::recursive);
  std::vector<std::string> names = *jit::Files().list(copy.path());
  fs::rename(copy.path() + "/" + names[0],
             copy.path() + "/" + names[0].substr(0, names[0].size() - 1) + "g");
  const KernelListing listing = *list_kernels(copy.path());
  ASSERT_EQ(listing.problems.size(), 1U);
  ASSERT_EQ(listing.missing.size(), 1U);
  EXPECT_TRUE(names[0].starts_with(listing.missing[0]));
}

TEST_F(Bundle, PruneTakesBadAndForeignEntriesAndClearTakesAll) {
  const jit::TestFolder copy;
  fs::copy(folder->path(), copy.path(), fs::copy_options::recursive);
  std::vector<std::string> names = *jit::Files().list(copy.path());
  jit::TestFolder::write(copy.path() + "/" + names[1] + "/meta.json", "{}");
  fs::create_directory(copy.path() + "/somebody's folder");
  fs::create_directory(copy.path() + "/.tmp-young");
  fs::create_directory(copy.path() + "/.tmp-old");
  fs::last_write_time(copy.path() + "/.tmp-old",
                      fs::file_time_type::clock::now() - std::chrono::hours(2));
  const std::vector<std::string> pruned = *prune_kernels(copy.path());
  EXPECT_EQ(pruned, (std::vector<std::string>{names[1], ".tmp-old"}));
  const std::vector<std::string> cleared = *clear_kernels(copy.path());
  EXPECT_EQ(cleared.size(), names.size() - 1);
  EXPECT_TRUE(fs::exists(copy.path() + "/somebody's folder"));
  EXPECT_TRUE(fs::exists(copy.path() + "/.tmp-young"));
}

TEST_F(Bundle, WithTheCompilerHiddenEveryKernelPrewarmsFromIt) {
  // The fake device answers every known-answer test with the answer; what is proven is that images
  // are found, loaded and asked. The real device computes under the gpu label.
  std::map<std::string, plan::SelfTest> tests;
  for (const kernels::CudaEntry& entry : kernels::cuda_catalog()) {
    for (const plan::KernelSource& source : entry.cuda->catalog(Arch::kSm90a)) {
      const Result<plan::SelfTest> test = entry.cuda->self_test(source.kernel);
      ASSERT_TRUE(test.has_value()) << source.kernel << ": " << test.status().to_string();
      tests[source.entry] = *test;
    }
  }
  const cuda::DriverTable driver = cuda::DriverFake::table();
  std::set<std::string> launched;
  cuda::DriverFake::set_body(
      [&](const std::string& entry, const cuda::CuLaunchConfig&, const void* arguments) {
        launched.insert(entry);
        write_known_answer(tests.at(entry), arguments);
      });
  const Result<std::unique_ptr<CudaRuntime>> runtime = CudaRuntime::create(
      driver,
      {.store = {.bundle_folder = folder->path(),
                 .open_compiler = [] { return Result<jit::NvrtcTable>(unsupported("hidden")); },
                 .sources = jit::embedded_sources()}});
  ASSERT_TRUE(runtime.has_value()) << runtime.status().to_string();
  std::size_t warmed = 0;
  for (const kernels::CudaEntry& entry : kernels::cuda_catalog()) {
    for (const plan::KernelSource& source : entry.cuda->catalog(Arch::kSm90a)) {
      const Status status = (*runtime)->kernels().prewarm(*entry.cuda, source.kernel);
      ASSERT_TRUE(status.ok()) << status.to_string();
      ++warmed;
    }
  }
  EXPECT_GE(warmed, 3U);
  EXPECT_EQ(launched.size(), warmed);
  EXPECT_EQ((*runtime)->store().counts(),
            (jit::StoreCounts{.bundle_hits = static_cast<std::int64_t>(warmed)}));
}

/// Family, recipe and role of a kernel's name: what stands before the tile, a letter and digits.
std::string_view without_tile(std::string_view kernel) {
  std::size_t at = kernel.find('_', kernel.find('.', kernel.find('.') + 1));
  while (at + 2 < kernel.size() && (kernel[at + 2] < '0' || kernel[at + 2] > '9')) {
    at = kernel.find('_', at + 1);
  }
  return kernel.substr(0, at);
}

// Several threads at once built the bundle. One image of each role is made again, alone: all of
// them would double the longest test there is. jit/compile_nvrtc_test.cc asks another process.
TEST_F(Bundle, CompilingAloneGivesTheSameBytes) {
  const jit::NvrtcTable nvrtc = *open_environment_nvrtc();
  std::set<std::string> roles;
  for (const kernels::CudaEntry& entry : kernels::cuda_catalog()) {
    for (const plan::KernelSource& source : entry.cuda->catalog(Arch::kSm90a)) {
      if (!roles.emplace(without_tile(source.kernel)).second) {
        continue;
      }
      const jit::ResolvedRequest request =
          *jit::resolve_request(cuda::image_request(source), jit::embedded_sources());
      const Result<jit::Image> alone = jit::compile_image(nvrtc, request);
      ASSERT_TRUE(alone.has_value()) << alone.status().to_string();
      const std::string name = jit::entry_name(source.kernel, request.image_id);
      EXPECT_TRUE(alone->cubin ==
                  jit::TestFolder::read(folder->path() + "/" + name + "/kernel.cubin"))
          << name;
    }
  }
  EXPECT_GE(roles.size(), 10U);
  EXPECT_TRUE(roles.contains("decode_gemv.w4a16_nvfp4.gate_up"));
}

TEST_F(Bundle, CancellingStopsAndSaysSo) {
  const jit::TestFolder other;
  const Status status = build_kernels({.archs = {Arch::kSm80},
                                       .output = other.path(),
                                       .progress = [](const BuildProgress&) { return false; }})
                            .status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("cancelled after 1"), std::string::npos);
}

}  // namespace
}  // namespace moekit
