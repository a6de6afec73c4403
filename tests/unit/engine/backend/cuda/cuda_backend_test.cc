#include "engine/backend/cuda_backend.h"

#include <gtest/gtest.h>

#include <string>

namespace ampd {
namespace {

// Whatever was built, and with or without a driver: an error that says which it is, never a crash.
TEST(CudaBackend, SaysWhyItCannotTrain) {
  const auto backend = MakeCudaBackend("");
  ASSERT_FALSE(backend.ok());
  EXPECT_TRUE(backend.status().code() == absl::StatusCode::kUnavailable ||
              backend.status().code() == absl::StatusCode::kUnimplemented)
      << backend.status();
  EXPECT_EQ(backend.status().message().rfind("CUDA backend: ", 0), 0u) << backend.status();
}

TEST(CudaPlanner, SaysWhatItLacks) {
  const AbsentGpu known{"NVIDIA L4", 8, 9, 58, int64_t{48} << 20, int64_t{24} << 30};
  const absl::Status status = MakeCudaPlanner(known).status();
  if (CudaPlanLibrary().empty()) {
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
    return;
  }
  EXPECT_EQ(status, absl::OkStatus());
  AbsentGpu gpu = known;
  gpu.multiprocessors = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(MakeCudaPlanner(gpu).status()));
  gpu = known;
  gpu.l2_bytes = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(MakeCudaPlanner(gpu).status()));
  gpu = known;
  gpu.compute_capability_major = 6;
  const absl::Status old = MakeCudaPlanner(gpu).status();
  EXPECT_TRUE(absl::IsInvalidArgument(old));
  EXPECT_NE(old.message().find("6.9"), std::string::npos) << old;
}

}  // namespace
}  // namespace ampd
