// Which graphs are kept, on the emulated device.
#include "engine/backend/cuda/graph_cache.h"

#include <gtest/gtest.h>

#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/device_memory.h"
#include "tests/support/cuda_on_host/cuda_on_host.h"

namespace ampd::cuda {
namespace {

class GraphCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cuda_on_host::Reset();
    context_ = Context::Open("").value();
    handles_ = cuda_on_host::Handles();
    memory_ = DeviceArray::Allocate(1, "a test").value();
  }
  void TearDown() override {
    memory_ = DeviceArray();
    context_.reset();
    cuda_on_host::Reset();
  }

  // That fills memory_ with `value`, `nodes` times.
  CapturedGraph Capture(int nodes, int value = 0) {
    EXPECT_EQ(cudaStreamBeginCapture(context_->stream(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
    for (int i = 0; i < nodes; ++i) {
      EXPECT_EQ(cudaMemsetAsync(memory_.as<void>(), value, 1, context_->stream()), cudaSuccess);
    }
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(context_->stream(), &graph), cudaSuccess);
    return CapturedGraph(graph);
  }
  // Of graphs that are ready.
  int64_t Ready() const { return cuda_on_host::Handles() - handles_; }

  std::unique_ptr<Context> context_;
  DeviceArray memory_;
  int64_t handles_ = 0;
};

TEST_F(GraphCacheTest, CountsNodes) {
  EXPECT_EQ(NodesOf(Capture(3)).value(), 3);
  EXPECT_EQ(NodesOf(Capture(0)).value(), 0);
}

TEST_F(GraphCacheTest, KeepsWhatWasLaunchedLast) {
  GraphCache cache(10);
  const GraphCache::Key first{0, 1, 1}, second{1, 1, 1}, third{0, 3, 1}, fourth{0, 1, 16};
  for (const GraphCache::Key& key : {first, second, third}) ASSERT_TRUE(cache.Add(key, Capture(3)).ok());
  EXPECT_EQ(cache.nodes(), 9);
  EXPECT_EQ(Ready(), 3);
  const cudaGraphExec_t kept = cache.Find(first);
  ASSERT_NE(kept, nullptr);
  // The first was launched after the second and third, which make room.
  const cudaGraphExec_t added = cache.Add(fourth, Capture(5)).value();
  EXPECT_EQ(cache.Find(fourth), added);
  EXPECT_EQ(cache.Find(first), kept);
  EXPECT_EQ(cache.Find(second), nullptr);
  EXPECT_EQ(cache.Find(third), nullptr);
  EXPECT_EQ(cache.nodes(), 8);
  EXPECT_EQ(Ready(), 2);
}

TEST_F(GraphCacheTest, AlwaysHoldsTheLastOne) {
  GraphCache cache(10);
  ASSERT_TRUE(cache.Add({0, 1, 1}, Capture(3)).ok());
  ASSERT_TRUE(cache.Add({0, 1, 16}, Capture(48)).ok());
  EXPECT_EQ(cache.Find({0, 1, 1}), nullptr);
  EXPECT_NE(cache.Find({0, 1, 16}), nullptr);
  EXPECT_EQ(cache.nodes(), 48);
  EXPECT_EQ(Ready(), 1);
}

TEST_F(GraphCacheTest, WhatIsUnderWayRunsToItsEnd) {
  GraphCache cache(1);
  ASSERT_EQ(cudaGraphLaunch(cache.Add({0, 1, 1}, Capture(1, 7)).value(), context_->stream()), cudaSuccess);
  ASSERT_TRUE(cache.Add({1, 1, 1}, Capture(1, 8)).ok());
  ASSERT_TRUE(context_->Wait().ok());
  EXPECT_EQ(*memory_.as<char>(), 7);
}

TEST_F(GraphCacheTest, PassesTheDriversErrorsOn) {
  GraphCache cache(10);
  cuda_on_host::Fail("cudaGraphInstantiate", cudaErrorMemoryAllocation);
  EXPECT_TRUE(absl::IsResourceExhausted(cache.Add({0, 1, 1}, Capture(1)).status()));
  EXPECT_EQ(cache.Find({0, 1, 1}), nullptr);
  EXPECT_EQ(cache.nodes(), 0);
}

}  // namespace
}  // namespace ampd::cuda
