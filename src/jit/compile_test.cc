// SPDX-License-Identifier: Apache-2.0
#include "jit/compile.h"

#include <gtest/gtest.h>

#include "jit/nvrtc_fake.h"

namespace moekit::jit {
namespace {

ResolvedRequest resolved() {
  const ImageRequest request = {.kernel = "f.r.k.sm90a",
                                .entry = "f_r_k_sm90a",
                                .arch = "sm_90a",
                                .prelude = "#include \"device/portable.h\"\n"};
  return *resolve_request(request, embedded_sources());
}

TEST(PtxasLog, FiguresAreRead) {
  ImageFacts facts;
  read_ptxas_log(
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'k_a' for 'sm_90a'\n"
      "ptxas info    : Function properties for k_a\n"
      "ptxas         .     256 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 1 barriers, 256 bytes cumulative stack size, 128 "
      "bytes smem\n"
      "ptxas info    : Compile time = 22.103 ms",
      facts);
  EXPECT_EQ(facts.registers, 168);
  EXPECT_EQ(facts.stack_bytes, 256);
  EXPECT_EQ(facts.spill_store_bytes, 12);
  EXPECT_EQ(facts.spill_load_bytes, 16);
  EXPECT_EQ(facts.smem_bytes, 128);
}

TEST(Compile, ImageCarriesFactsAndWhatWasCompiled) {
  const NvrtcTable nvrtc = NvrtcFake::table();
  const Result<Image> image = compile_image(nvrtc, resolved());
  ASSERT_TRUE(image.has_value()) << image.status().to_string();
  EXPECT_EQ(image->facts.kernel, "f.r.k.sm90a");
  EXPECT_EQ(image->facts.nvrtc_version, "13.0");
  EXPECT_EQ(image->facts.min_driver, 13000);
  EXPECT_EQ(image->facts.registers, 32);
  EXPECT_NE(image->cubin.find("--gpu-architecture=sm_90a"), std::string::npos);
  EXPECT_NE(image->source.find("// ==== device/portable.h ===="), std::string::npos);
  EXPECT_EQ(NvrtcFake::calls(),
            (std::vector<std::string>{"create_program", "compile_program", "destroy_program"}));
}

TEST(Compile, ErrorsNameKernelArchAndTheFirstErrorLine) {
  const NvrtcTable nvrtc = NvrtcFake::table();
  NvrtcFake::fail_with(6, "note\nkernel.cuh(12): error: identifier \"x\" is undefined\nmore\n");
  const Status broken = compile_image(nvrtc, resolved()).status();
  EXPECT_EQ(broken.code(), StatusCode::kInternal);
  EXPECT_EQ(broken.message(),
            "kernel f.r.k.sm90a does not compile for sm_90a: kernel.cuh(12): error: identifier "
            "\"x\" is undefined");
  NvrtcFake::fail_with(5, "nvrtc: error: invalid value for --gpu-architecture (-arch)\n");
  const Status old = compile_image(nvrtc, resolved()).status();
  EXPECT_EQ(old.code(), StatusCode::kUnsupported);
  EXPECT_NE(old.message().find("NVRTC 13.0"), std::string::npos);
  EXPECT_EQ(NvrtcFake::calls().back(), "destroy_program");
}

}  // namespace
}  // namespace moekit::jit
