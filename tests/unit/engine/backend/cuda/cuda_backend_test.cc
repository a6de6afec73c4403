#include "engine/backend/cuda_backend.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace ampd
