// SPDX-License-Identifier: Apache-2.0
// moekit kernels with the real compiler, no GPU, and no HOME that could be written.

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/cli_fixture.h"

namespace moekit::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class CliKernels : public testing::Test {
 protected:
  CliKernels() {
    ::setenv("HOME", "/proc/no_home", 1);
    ::unsetenv("XDG_CACHE_HOME");
    ::unsetenv("MOEKIT_CACHE");
  }
};

TEST_F(CliKernels, BuildListVerifyFlipPruneClear) {
  const std::string bundle = (scratch_folder() / "bundle").string();
  // Archs of few kernels: runtime/kernels_nvrtc_test.cc compiles all, and says which may spill.
  const CliResult built =
      run_cli({"kernels", "build", "--arch", "sm_80,sm_89,sm_120a", "--output", bundle, "--json"});
  if (built.exit_code == 3) {
    GTEST_SKIP() << built.err;
  }
  ASSERT_EQ(built.exit_code, 0) << built.err;
  const Json images = built.json().at("images");
  ASSERT_GE(images.size(), 12U);
  for (const Json& image : images) {
    EXPECT_GE(image.at("spill_bytes"), 0) << image.dump();
    EXPECT_GT(image.at("registers"), 0) << image.dump();
  }
  const CliResult listed = run_cli({"kernels", "list", bundle});
  EXPECT_EQ(listed.exit_code, 0);
  EXPECT_NE(listed.out.find("quantize_rows.q4.rows_t256.sm89"), std::string::npos) << listed.out;
  EXPECT_NE(listed.out.find("registers"), std::string::npos);
  EXPECT_EQ(run_cli({"kernels", "verify", bundle}).exit_code, 0);

  const fs::path entry = fs::directory_iterator(bundle)->path();
  std::string cubin = read_file(entry / "kernel.cubin");
  cubin[cubin.size() / 3] = static_cast<char>(cubin[cubin.size() / 3] ^ 4);
  write_file(entry / "kernel.cubin", cubin);
  const CliResult broken = run_cli({"kernels", "verify", bundle});
  EXPECT_EQ(broken.exit_code, 1);
  EXPECT_NE(broken.out.find("kernel.cubin does not match its checksum"), std::string::npos)
      << broken.out;
  EXPECT_NE(run_cli({"kernels", "prune", bundle}).out.find(entry.filename().string()),
            std::string::npos);
  const CliResult missing = run_cli({"kernels", "verify", bundle});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_NE(missing.out.find("missing: "), std::string::npos) << missing.out;
  EXPECT_EQ(run_cli({"kernels", "clear", bundle}).exit_code, 0);
  EXPECT_TRUE(fs::is_empty(bundle));
}

TEST_F(CliKernels, UsageErrorsAndFoldersThatCannotBeWritten) {
  EXPECT_EQ(run_cli({"kernels"}).exit_code, 2);
  EXPECT_EQ(run_cli({"kernels", "bild"}).exit_code, 2);
  EXPECT_EQ(run_cli({"kernels", "build", "--arch", "sm_80"}).exit_code, 2);
  EXPECT_EQ(run_cli({"kernels", "list", "--arch", "sm_80"}).exit_code, 2);
  const CliResult arch = run_cli({"kernels", "build", "--arch", "sm_91", "--output", "x"});
  EXPECT_EQ(arch.exit_code, 2);
  EXPECT_NE(arch.err.find("sm_91"), std::string::npos);
  const CliResult empty = run_cli({"kernels", "verify", scratch_folder().string() + "/none"});
  EXPECT_EQ(empty.exit_code, 1);
  EXPECT_NE(empty.out.find("no image to verify"), std::string::npos);
  const CliResult unwritable =
      run_cli({"kernels", "build", "--arch", "sm_80", "--output", "/proc/no_folder"});
  EXPECT_TRUE(unwritable.exit_code == 4 || unwritable.exit_code == 3) << unwritable.err;
  ::setenv("MOEKIT_NVRTC_LIBRARY", "none", 1);
  const CliResult hidden =
      run_cli({"kernels", "build", "--arch", "sm_80", "--output", scratch_folder().string()});
  ::unsetenv("MOEKIT_NVRTC_LIBRARY");
  EXPECT_EQ(hidden.exit_code, 3);
  EXPECT_NE(hidden.err.find("MOEKIT_NVRTC_LIBRARY=none"), std::string::npos);
}

}  // namespace
}  // namespace moekit::test
