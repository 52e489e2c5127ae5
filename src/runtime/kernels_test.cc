// SPDX-License-Identifier: Apache-2.0
#include "moekit/kernels.h"

#include <memory>
#include <set>

#include <gtest/gtest.h>

#include "cuda/driver_fake.h"
#include "jit/test_folder.h"
#include "kernels/catalog.h"
#include "runtime/cuda_runtime.h"

namespace moekit {
namespace {

TEST(Kernels, BadRequestsNameWhatIsWrong) {
  EXPECT_EQ(build_kernels({.archs = {}, .output = "x"}).status(),
            invalid_argument("no arch to build kernels for"));
  EXPECT_EQ(build_kernels({.archs = {Arch::kSm80}}).status(),
            invalid_argument("no folder to build kernels into"));
  EXPECT_EQ(build_kernels({.archs = {Arch::kCpu}, .output = "x"}).status(),
            invalid_argument("cpu has no kernel images"));
  EXPECT_EQ(prune_kernels("").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(clear_kernels("").status().code(), StatusCode::kInvalidArgument);
}

TEST(Kernels, AFolderThatDoesNotExistIsEmpty) {
  const jit::TestFolder folder;
  const Result<KernelListing> listing = list_kernels(folder.path() + "/none");
  ASSERT_TRUE(listing.has_value());
  EXPECT_TRUE(listing->images.empty());
  EXPECT_TRUE(listing->missing.empty());
  EXPECT_EQ(prune_kernels(folder.path() + "/none")->size(), 0U);
}

TEST(Kernels, CatalogueNamesAreUniqueAndTheirOwnInverse) {
  std::size_t checked = 0;
  std::set<std::string> names;
  for (const kernels::CudaEntry& entry : kernels::cuda_catalog()) {
    for (const Arch arch : plan::kCudaArchs) {
      for (const plan::KernelSource& source : entry.cuda->catalog(arch)) {
        EXPECT_TRUE(names.insert(source.kernel).second) << source.kernel;
        EXPECT_TRUE(source.kernel.starts_with(std::string(entry.family) + ".")) << source.kernel;
        EXPECT_EQ(source.entry, plan::entry_symbol(source.kernel));
        const Result<plan::KernelSource> again = entry.cuda->source(source.kernel);
        ASSERT_TRUE(again.has_value()) << again.status().to_string();
        EXPECT_EQ(*again, source);
        ++checked;
      }
    }
  }
  EXPECT_GE(checked, 21U);
}

TEST(Prewarm, ACpuPlanNeedsNothingAndAGpuPlanNeedsADriver) {
  const Result<Runtime> runtime = Runtime::create({.num_threads = 1});
  ASSERT_TRUE(runtime.has_value());
  PlanData content;
  content.device.arch = Arch::kCpu;
  EXPECT_TRUE(prewarm(*runtime, Plan(std::make_shared<const PlanData>(content))).ok());
}

TEST(Prewarm, AnotherArchThanTheDevicesIsAnErrorNamingBoth) {
  const cuda::DriverTable driver = cuda::DriverFake::table();
  const auto runtime = CudaRuntime::create(driver, {});
  ASSERT_TRUE(runtime.has_value());
  PlanData content;
  content.device.arch = Arch::kSm120a;
  const Status status = (*runtime)->prewarm(Plan(std::make_shared<const PlanData>(content)));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "the plan is for sm_120a, cuda:0 is sm_90a");
}

TEST(Freeze, IsOfTheWholeProcess) {
  freeze_kernels("serving");
  EXPECT_TRUE(freeze_gate().frozen());
  EXPECT_EQ(freeze_gate().reason(), "serving");
  unfreeze_kernels("done");
  EXPECT_FALSE(freeze_gate().frozen());
}

}  // namespace
}  // namespace moekit
