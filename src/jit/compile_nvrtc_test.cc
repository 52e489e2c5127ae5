// SPDX-License-Identifier: Apache-2.0

// The real compiler, on a machine without a GPU.

#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/config.h"
#include "jit/store.h"
#include "jit/test_folder.h"

namespace moekit::jit {
namespace {

class Nvrtc : public testing::Test {
 protected:
  void SetUp() override {
    const base::Config& config = base::environment_config();
    Result<NvrtcTable> opened =
        open_nvrtc({.library = config.nvrtc_library, .toolkit_folder = config.toolkit_folder});
    if (!opened) {
      GTEST_SKIP() << opened.status().message();
    }
    nvrtc = *opened;
  }

  static ImageRequest request(const std::string& arch) {
    return {.kernel = "test.none.codec_t1." + arch,
            .entry = "test_codec",
            .arch = arch,
            .prelude =
                "#include \"device/numerics/activation.h\"\n"
                "#include \"device/numerics/e2m1.h\"\n"
                "#include \"device/numerics/e4m3.h\"\n"
                "#include \"device/numerics/e8m0.h\"\n"
                "using namespace moekit::device;\n"
                "extern \"C\" __global__ void test_codec(u32* out, const float* x) {\n"
                "  const float v = sigmoid_f32(e8m0_to_f32(bits_of(x[threadIdx.x]) & 255U));\n"
                "  out[threadIdx.x] = e2m1_from_f32(v) | e4m3_from_f32(x[threadIdx.x + 32]);\n"
                "}\n"};
  }

  NvrtcTable nvrtc;
};

TEST_F(Nvrtc, CompilesForEveryArchWithFactsAndWithoutSpills) {
  std::size_t checked = 0;
  for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a", "sm_121a"}) {
    const Result<Image> image =
        compile_image(nvrtc, *resolve_request(request(arch), embedded_sources()));
    ASSERT_TRUE(image.has_value()) << arch << ": " << image.status().to_string();
    EXPECT_TRUE(
        image->cubin.starts_with("\x7f"
                                 "ELF"))
        << arch;
    EXPECT_GT(image->facts.registers, 0) << arch;
    EXPECT_EQ(image->facts.spill_store_bytes, 0) << arch;
    EXPECT_EQ(image->facts.stack_bytes, 0) << arch;
    EXPECT_EQ(image->facts.min_driver, nvrtc.major * 1000);
    ++checked;
  }
  EXPECT_EQ(checked, 7U);
}

TEST_F(Nvrtc, TheSameRequestGivesTheSameBytesInAnotherProcess) {
  const ResolvedRequest resolved = *resolve_request(request("sm_90a"), embedded_sources());
  const Result<Image> here = compile_image(nvrtc, resolved);
  ASSERT_TRUE(here.has_value());
  const TestFolder folder;
  const std::string path = folder.path() + "/cubin";
  const pid_t child = ::fork();
  if (child == 0) {
    const Result<Image> there = compile_image(nvrtc, resolved);
    TestFolder::write(path, there ? there->cubin : std::string());
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(TestFolder::read(path), here->cubin);
}

TEST_F(Nvrtc, AnUnknownArchIsUnsupportedAndABrokenSourceNamesItsLine) {
  const Status unknown =
      compile_image(nvrtc, *resolve_request(request("sm_999z"), embedded_sources())).status();
  EXPECT_EQ(unknown.code(), StatusCode::kUnsupported) << unknown.to_string();
  EXPECT_NE(unknown.message().find("sm_999z"), std::string::npos);
  ImageRequest broken = request("sm_90a");
  broken.prelude += "int f() { return not_declared; }\n";
  const Status status = compile_image(nvrtc, *resolve_request(broken, embedded_sources())).status();
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_NE(status.message().find("not_declared"), std::string::npos) << status.to_string();
}

TEST_F(Nvrtc, StandardHeadersAreNotFoundWhichIsThePoint) {
  ImageRequest asked = request("sm_90a");
  ResolvedRequest resolved = *resolve_request(asked, embedded_sources());
  resolved.request.prelude = "#include <cstdint>\n" + resolved.request.prelude;
  EXPECT_FALSE(compile_image(nvrtc, resolved).has_value());
}

}  // namespace
}  // namespace moekit::jit
