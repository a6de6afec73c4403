// What kernels rely on, shown of the emulated device itself.
#include <gtest/gtest.h>

#include <vector>

#include "engine/backend/cuda/block_sum.h"
#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/launch.h"
#include "tests/support/cuda_on_host/cuda_on_host.h"

namespace ampd::cuda {
namespace {

class CudaOnHost : public ::testing::Test {
 protected:
  void SetUp() override {
    cuda_on_host::Reset();
    auto context = Context::Open("");
    ASSERT_TRUE(context.ok()) << context.status();
    context_ = *std::move(context);
  }
  void TearDown() override {
    context_.reset();
    cuda_on_host::Reset();
  }
  cudaStream_t stream() const { return context_->stream(); }
  std::unique_ptr<Context> context_;
};

__global__ void ReverseBlock(int* values) {
  __shared__ int shared[96];
  const int t = static_cast<int>(threadIdx.x), n = static_cast<int>(blockDim.x);
  int* own = values + blockIdx.x * blockDim.x;
  shared[t] = own[t];
  __syncthreads();
  own[t] = shared[n - 1 - t];
}

TEST_F(CudaOnHost, ThreadsMeetAtBarriers) {
  std::vector<int> values(2 * 96);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int>(i);
  ASSERT_TRUE(Launch("reverse", ReverseBlock, 2, 96, 0, stream(), values.data()).ok());
  ASSERT_TRUE(context_->Wait().ok());
  EXPECT_EQ(values[0], 95);
  EXPECT_EQ(values[95], 0);
  EXPECT_EQ(values[96], 191);
}

__global__ void SumEach(const int* values, int* sums) {
  sums[threadIdx.x] = BlockSum(values[threadIdx.x]) + __shfl_down_sync(kAllLanes, 0, 1) +
                      (__ballot_sync(kAllLanes, threadIdx.x % 2) == 0xaaaaaaaau ? 0 : 1000);
}

TEST_F(CudaOnHost, WarpsExchange) {
  std::vector<int> values(128), sums(128);
  for (int i = 0; i < 128; ++i) values[i] = i * i;
  ASSERT_TRUE(Launch("sum", SumEach, 1, 128, 0, stream(), values.data(), sums.data()).ok());
  ASSERT_TRUE(context_->Wait().ok());
  for (int sum : sums) EXPECT_EQ(sum, 127 * 128 * 255 / 6);
}

__global__ void AddOne(int* value) { ++*value; }

TEST_F(CudaOnHost, GraphsReplayWhatWasCaptured) {
  int value = 0;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeGlobal), cudaSuccess);
  ASSERT_TRUE(Launch("add", AddOne, 1, 1, 0, stream(), &value).ok());
  ASSERT_TRUE(Launch("add", AddOne, 1, 1, 0, stream(), &value).ok());
  ASSERT_EQ(cudaStreamEndCapture(stream(), &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  EXPECT_EQ(value, 0);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(cudaGraphLaunch(exec, stream()), cudaSuccess);
  ASSERT_TRUE(context_->Wait().ok());
  EXPECT_EQ(value, 6);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

__global__ void MissBarrier() {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST_F(CudaOnHost, DifferentBarriersEndTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        static_cast<void>(Launch("miss", MissBarrier, 1, 32, 0, stream()));
        static_cast<void>(context_->Wait());
      },
      "threads are at different barriers");
}

TEST_F(CudaOnHost, StickyErrorsStay) {
  int value = 0;
  cuda_on_host::Fail("kernel", cudaErrorIllegalAddress);
  ASSERT_TRUE(Launch("add", AddOne, 1, 1, 0, stream(), &value).ok());
  const absl::Status status = context_->Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(value, 0);
  EXPECT_EQ(Launch("add", AddOne, 1, 1, 0, stream(), &value).code(), absl::StatusCode::kUnavailable);
}

TEST_F(CudaOnHost, OpenNamesDevicesAndOldDrivers) {
  const auto other = Context::Open("GPU-00000000-0000-0000-0000-000000000000");
  EXPECT_EQ(other.status().code(), absl::StatusCode::kNotFound);
  cuda_on_host::SetDevices(0);
  EXPECT_EQ(Context::Open("").status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ampd::cuda
