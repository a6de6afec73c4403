// The calls that captured training makes of the driver, recorded; and what becomes of it when one of them fails.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend/cuda_backend.h"
#include "engine/train/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/cuda_on_host/cuda_on_host.h"
#include "tests/unit/engine/train/device_jobs.h"

namespace ampd::train {
namespace {

using ::testing::HasSubstr;

const std::string kModel =
    "model { layers { flatten {} } layers { dense { units: 12 activation: GELU } } layers { dropout { rate: 0.2 } }"
    "        layers { dense { units: 10 } } loss { softmax_cross_entropy {} } }"
    "precision { mode: FP16 } optimizer { adamw {} clip_global_norm: 1 }"
    "data { train { glyphs { samples: 96 } } } seed: 5";

class CudaFaults : public ::testing::Test {
 protected:
  void SetUp() override { cuda_on_host::Reset(); }
  void TearDown() override {
    // Whatever happened, nothing is left.
    EXPECT_EQ(cuda_on_host::DeviceBytes(), 0);
    EXPECT_EQ(cuda_on_host::PinnedBytes(), 0);
    EXPECT_EQ(cuda_on_host::Handles(), 0);
    cuda_on_host::Reset();
  }
  absl::StatusOr<Outcome> TrainFor(int64_t steps, Recorder* recorder) {
    const ScratchFolder folder;
    TrainerOptions options = Options(folder.path());
    options.make_backend = [] { return MakeCudaBackend(""); };
    return Train(Spec({kModel, absl::StrCat("train { batch_size: 16 micro_batch_size: 8 steps: ", steps,
                                            " } report { every_steps: 1 }")}),
                 options, recorder);
  }
};

TEST_F(CudaFaults, ACapturedStepIsOneLaunch) {
  Recorder recorder;
  std::vector<std::string> calls;
  int64_t bytes = 0, handles = 0;
  recorder.on_event = [&](const v1::JobEvent& event) {
    if (event.has_step() && event.step().last_step() == 20) {
      cuda_on_host::ClearCalls();
      bytes = cuda_on_host::DeviceBytes() + cuda_on_host::PinnedBytes();
      handles = cuda_on_host::Handles();
    }
    if (event.has_step() && event.step().last_step() == 280) {
      calls = cuda_on_host::Calls();
      EXPECT_EQ(cuda_on_host::DeviceBytes() + cuda_on_host::PinnedBytes(), bytes);
      // Events of launches under way come and go.
      EXPECT_LE(cuda_on_host::Handles(), handles + 300);
    }
    return absl::OkStatus();
  };
  const auto outcome = TrainFor(300, &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const auto count = [&](const char* name) { return std::count(calls.begin(), calls.end(), name); };
  EXPECT_GT(count("cudaGraphLaunch"), 0);
  EXPECT_LE(count("cudaGraphLaunch"), 280);
  EXPECT_GT(count("kernel"), 260 * 10) << "they ran, as nodes of graphs";
  for (const char* name : {"cudaLaunchKernel", "cudaMalloc", "cudaHostAlloc", "cudaFree", "cudaStreamSynchronize",
                           "cudaDeviceSynchronize", "cudaMemsetAsync"}) {
    EXPECT_EQ(count(name), 0) << name;
  }
}

TEST_F(CudaFaults, AFailedCallEndsTheTrainingWithItsClass) {
  struct Case {
    const char* call;
    cudaError_t error;
    int after;
    v1::Failure::Class failure_class;
  };
  for (const Case& c : std::vector<Case>{
           {"kernel", cudaErrorIllegalAddress, 2000, v1::Failure::GPU_FAULT},
           {"kernel", cudaErrorECCUncorrectable, 300, v1::Failure::GPU_FAULT},
           {"cudaGraphLaunch", cudaErrorLaunchFailure, 3, v1::Failure::GPU_FAULT},
           {"cudaMemcpyAsync", cudaErrorIllegalAddress, 90, v1::Failure::GPU_FAULT},
           {"cudaEventRecord", cudaErrorInvalidResourceHandle, 7, v1::Failure::INTERNAL},
           {"cudaGraphInstantiate", cudaErrorMemoryAllocation, 0, v1::Failure::OUT_OF_MEMORY},
           {"cudaStreamBeginCapture", cudaErrorNotSupported, 0, v1::Failure::INTERNAL},
           {"cudaLaunchKernel", cudaErrorInvalidConfiguration, 60, v1::Failure::INTERNAL},
           {"cudaHostAlloc", cudaErrorMemoryAllocation, 0, v1::Failure::OUT_OF_MEMORY},
       }) {
    SCOPED_TRACE(absl::StrCat(c.call, " after ", c.after));
    cuda_on_host::Reset();
    cuda_on_host::Fail(c.call, c.error, c.after);
    Recorder recorder;
    const auto outcome = TrainFor(40, &recorder);
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(FailureOf(outcome.status()).class_(), c.failure_class) << outcome.status();
    EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("[cuda] "));
    // A device that failed gives nothing back until it is reset.
    cuda_on_host::Reset();
  }
}

TEST_F(CudaFaults, TooLittleMemorySaysWhatWasAskedAndWhatWasFree) {
  cuda_on_host::SetMemory(200000);
  Recorder recorder;
  const auto outcome = TrainFor(4, &recorder);
  EXPECT_EQ(outcome.status().code(), absl::StatusCode::kResourceExhausted) << outcome.status();
  EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("200000"));
}

}  // namespace
}  // namespace ampd::train
