// What kernels rely on, shown of the emulated device itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "engine/backend/cuda/block_sum.h"
#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/conv.h"
#include "engine/backend/cuda/cuda_memory.h"
#include "engine/backend/cuda/device_failure.h"
#include "engine/backend/cuda/device_memory.h"
#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/status.h"
#include "engine/core/tensor.h"
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

TEST_F(CudaOnHost, DevicesThatFailAreUnavailable) {
  for (const cudaError_t error :
       {cudaErrorDevicesUnavailable, cudaErrorSystemNotReady, cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable,
        cudaErrorContained, cudaErrorTensorMemoryLeak, cudaErrorExternalDevice, cudaErrorLaunchFailure}) {
    EXPECT_EQ(ToStatus(error, "a call").code(), absl::StatusCode::kUnavailable) << error;
  }
  EXPECT_EQ(ToStatus(cudaErrorInvalidValue, "a call").code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ToStatus(cudaErrorMemoryAllocation, "a call").code(), absl::StatusCode::kResourceExhausted);
}

// A library says "internal error" or "execution failed" of its own, and ours need not have met the fault yet.
TEST_F(CudaOnHost, ALibrarysFailureIsTheDevicesWhereThatFailed) {
  const absl::Status failed = absl::InternalError("[cudnn] engine 3: CUDNN_STATUS_EXECUTION_FAILED");
  const absl::Status refused = absl::UnimplementedError("[cudnn] no engine");
  EXPECT_EQ(DeviceFailureOr(*context_, failed), failed);
  // An error that does not stay was the call's that met it.
  cuda_on_host::Fail("cudaMalloc", cudaErrorMemoryAllocation);
  void* memory = nullptr;
  EXPECT_NE(cudaMalloc(&memory, 1), cudaSuccess);
  EXPECT_EQ(DeviceFailureOr(*context_, failed), failed);

  cuda_on_host::Fail("cudaMemsetAsync", cudaErrorIllegalAddress);
  EXPECT_NE(cudaMemsetAsync(&memory, 0, 1, stream()), cudaSuccess);
  EXPECT_TRUE(DeviceFailureOr(*context_, absl::OkStatus()).ok());
  for (const absl::Status& status : {failed, refused}) {
    const absl::Status device = DeviceFailureOr(*context_, status);
    EXPECT_EQ(device.code(), absl::StatusCode::kUnavailable) << device;
    for (const absl::string_view part : {status.message(), absl::string_view("cudaErrorIllegalAddress")}) {
      EXPECT_NE(device.message().find(part), absl::string_view::npos) << device;
    }
    EXPECT_EQ(DeviceFailureOr(*context_, device), device) << "said once";
  }
  // A device that need not be there is not asked.
  cuda_on_host::ClearCalls();
  EXPECT_EQ(DeviceFailureOr(Context(context_->properties()), failed), failed);
  EXPECT_TRUE(cuda_on_host::Calls().empty());
}

TEST_F(CudaOnHost, ConvolutionsRefuseAWorkspaceThatIsNotAligned) {
  const ConvDesc desc = {.image = {1, 1, 1, 1}, .filter = {1, 1, 1, 1}, .output = {1, 1, 1, 1}};
  const Tensor image(DType::kF32, {1}), filter(DType::kF32, {1}), result(DType::kF32, {1});
  const auto conv = Conv::Create("layer", desc, context_.get());
  ASSERT_TRUE(conv.ok()) << conv.status();
  const AlignedBuffer workspace((*conv)->workspace_bytes() + 256);
  for (const int64_t offset : {256, 128, 16}) {
    const absl::Status status = (*conv)->Run({.a = image.view().data,
                                              .b = filter.view().data,
                                              .result = result.view().data,
                                              .workspace = workspace.data() + offset});
    EXPECT_EQ(status.ok(), offset == 256) << offset << ": " << status;
    EXPECT_EQ(status.message().find("layer: the workspace at ") != absl::string_view::npos, offset != 256) << status;
  }
  EXPECT_TRUE(context_->Wait().ok());
}

TEST_F(CudaOnHost, TellsPageableCopies) {
  const DeviceArray device = DeviceArray::Allocate(8, "a test").value();
  const PinnedArray pinned = PinnedArray::Allocate(8, "a test").value();
  int64_t pageable = 0;
  const auto copies = [&](void* to, const void* from, cudaMemcpyKind kind) {
    cuda_on_host::ClearCalls();
    EXPECT_EQ(cudaMemcpyAsync(to, from, 8, kind, stream()), cudaSuccess);
    const std::vector<std::string> calls = cuda_on_host::Calls();
    return std::count(calls.begin(), calls.end(), cuda_on_host::kPageableCopy);
  };
  EXPECT_EQ(copies(device.as<void>(), &pageable, cudaMemcpyHostToDevice), 1);
  EXPECT_EQ(copies(&pageable, device.as<void>(), cudaMemcpyDeviceToHost), 1);
  EXPECT_EQ(copies(device.as<void>(), pinned.as<void>(), cudaMemcpyHostToDevice), 0);
  EXPECT_EQ(copies(pinned.as<void>(), device.as<void>(), cudaMemcpyDeviceToHost), 0);
  EXPECT_EQ(copies(device.as<void>(), device.as<void>(), cudaMemcpyDeviceToDevice), 0);
  EXPECT_TRUE(context_->Wait().ok());
}

int64_t Count(const std::string& call) {
  const std::vector<std::string> calls = cuda_on_host::Calls();
  return std::count(calls.begin(), calls.end(), call);
}

// A context of a device that reads pageable memory itself, or not, as GH200 and GB200 do.
std::unique_ptr<Context> OpenReadingPageable(bool reads) {
  cudaDeviceProp properties;
  EXPECT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  properties.pageableMemoryAccessUsesHostPageTables = reads;
  cuda_on_host::SetProperties(properties);
  return Context::Open("").value();
}

// Whoever uploads refills or frees at once.
TEST_F(CudaOnHost, WhatWasUploadedMayChangeAtOnce) {
  for (const bool reads : {false, true}) {
    const std::unique_ptr<Context> context = OpenReadingPageable(reads);
    const DeviceArray array = DeviceArray::Allocate(sizeof(int), "a test").value();
    std::promise<void> gate;
    std::atomic<bool> changed = false;
    cuda_on_host::ClearCalls();
    cuda_on_host::Enqueue(context->stream(), "gate", [opened = gate.get_future().share()] { opened.wait(); });
    // The device comes to the copy when the host waits for it, or has gone on.
    std::thread opener([&] {
      while (!changed && Count("cudaStreamSynchronize") == 0) std::this_thread::yield();
      gate.set_value();
    });
    int value = 1;
    EXPECT_TRUE(CudaMemory(context.get()).Upload(&value, sizeof(value), array.as<void>()).ok());
    EXPECT_EQ(Count("cudaStreamSynchronize"), reads ? 1 : 0);
    value = 2;
    changed = true;
    opener.join();
    EXPECT_TRUE(context->Wait().ok());
    EXPECT_EQ(*array.as<int>(), 1);
  }
}

TEST_F(CudaOnHost, UploadsDoNotWaitInACapture) {
  const std::unique_ptr<Context> context = OpenReadingPageable(true);
  const DeviceArray array = DeviceArray::Allocate(sizeof(int), "a test").value();
  const PinnedArray pinned = PinnedArray::Allocate(sizeof(int), "a test").value();
  cuda_on_host::ClearCalls();
  ASSERT_EQ(cudaStreamBeginCapture(context->stream(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_TRUE(CudaMemory(context.get()).Upload(pinned.as<void>(), sizeof(int), array.as<void>()).ok());
  EXPECT_EQ(Count("cudaStreamSynchronize"), 0);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(context->stream(), &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(CudaOnHost, TellsKernelsMetInCaptures) {
  int value = 0;
  const auto met = [&](bool capture) {
    cuda_on_host::ClearCalls();
    if (capture) static_cast<void>(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal));
    EXPECT_TRUE(Launch("add", AddOne, 1, 1, 0, stream(), &value).ok());
    cudaGraph_t graph = nullptr;
    if (capture) static_cast<void>(cudaStreamEndCapture(stream(), &graph));
    EXPECT_EQ(graph != nullptr, capture);
    if (capture) static_cast<void>(cudaGraphDestroy(graph));
    const std::vector<std::string> calls = cuda_on_host::Calls();
    return std::count(calls.begin(), calls.end(), cuda_on_host::kKernelMetInCapture);
  };
  EXPECT_EQ(met(true), 1);
  EXPECT_EQ(met(true), 0);
  cuda_on_host::Reset();
  EXPECT_EQ(met(false), 0);
  EXPECT_EQ(met(true), 0);
  EXPECT_TRUE(context_->Wait().ok());
}

TEST_F(CudaOnHost, OpenNamesDevicesAndOldDrivers) {
  const auto other = Context::Open("GPU-00000000-0000-0000-0000-000000000000");
  EXPECT_EQ(other.status().code(), absl::StatusCode::kNotFound);
  cuda_on_host::SetDevices(0);
  EXPECT_EQ(Context::Open("").status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ampd::cuda
