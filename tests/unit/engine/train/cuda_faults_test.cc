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
  absl::StatusOr<Outcome> TrainFor(int64_t steps, Recorder* recorder, const std::string& more = "") {
    const ScratchFolder folder;
    TrainerOptions options = Options(folder.path());
    options.make_backend = [] { return MakeCudaBackend("", AutotuneFolder()); };
    return Train(
        Spec({kModel,
              absl::StrCat("train { batch_size: 16 micro_batch_size: 8 steps: ", steps, " } report { every_steps: 1 }"),
              more}),
        options, recorder);
  }
};

TEST_F(CudaFaults, ACapturedStepIsOneLaunch) {
  for (const bool fed : {true, false}) {
    SCOPED_TRACE(fed);
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
    const auto outcome = TrainFor(300, &recorder, fed ? kFed : "");
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(LieOnDevice(recorder), !fed);
    const auto count = [&](const char* name) { return std::count(calls.begin(), calls.end(), name); };
    EXPECT_GT(count("cudaGraphLaunch"), 0);
    EXPECT_LE(count("cudaGraphLaunch"), 280);
    EXPECT_GT(count("kernel"), 260 * 10) << "they ran, as nodes of graphs";
    // Besides graphs, one launch to make the batches of what is launched at once.
    EXPECT_LE(count("cudaLaunchKernel"), fed ? 0 : count("cudaGraphLaunch"));
    EXPECT_LE(count("cudaMemcpyAsync"), 2 * 280);
    for (const char* name : {"cudaMalloc", "cudaHostAlloc", "cudaFree", "cudaStreamSynchronize",
                             "cudaDeviceSynchronize", "cudaMemsetAsync", cuda_on_host::kPageableCopy}) {
      EXPECT_EQ(count(name), 0) << name;
    }
  }
}

// Its code may be loaded on its first launch, which no capture has to bear.
TEST_F(CudaFaults, NoKernelIsMetInACapture) {
  int captured = 0;
  for (const Job& job : Jobs()) {
    // Between them: buckets, phases, FP8, untrained state, LAMB, recurrences, and a model that is made anew.
    const std::vector<std::string> kNames = {"Spelling", "Phases", "Fp8", "Normed", "NoMasters", "FallsBack"};
    if (std::find(kNames.begin(), kNames.end(), job.name) == kNames.end()) continue;
    SCOPED_TRACE(job.name);
    cuda_on_host::Reset();
    const ScratchFolder folder;
    WriteSequences(folder.path());
    TrainerOptions options = Options(folder.path());
    options.steps = StepMode::kCaptured;
    options.make_backend = [] { return MakeCudaBackend("", AutotuneFolder()); };
    Recorder recorder;
    const auto outcome = Train(Spec(job.parts), options, &recorder);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    const std::vector<std::string> calls = cuda_on_host::Calls();
    EXPECT_GT(std::count(calls.begin(), calls.end(), "cudaStreamBeginCapture"), 0);
    EXPECT_EQ(std::count(calls.begin(), calls.end(), cuda_on_host::kKernelMetInCapture), 0);
    ++captured;
  }
  EXPECT_EQ(captured, 6);
}

// Here there is no cuDNN, as the log says once for each reason.
TEST_F(CudaFaults, SaysWhatAttentionRunsOn) {
  Recorder recorder;
  const ScratchFolder folder;
  TrainerOptions options = Options(folder.path());
  options.make_backend = [] { return MakeCudaBackend("", AutotuneFolder()); };
  const auto outcome =
      Train(Spec({"model { layers { max_pool { size: 4 } } layers { lstm { units: 4 } }"
                  "        layers { multi_head_attention { heads: 2 } }"
                  "        layers { name: 'other' multi_head_attention { heads: 2 } } layers { flatten {} }"
                  "        layers { dense { units: 10 } } loss { softmax_cross_entropy {} } }"
                  "data { train { glyphs { samples: 96 } } } optimizer { sgd {} } train { batch_size: 16 steps: 2 }"}),
            options, &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  std::vector<std::string> said;
  for (const v1::LogLine& line : recorder.logs()) {
    if (line.text().find("attention runs on") == 0) said.push_back(line.text());
  }
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0], HasSubstr("not cuDNN"));
  EXPECT_THAT(said[0], HasSubstr("(this build has no cuDNN): "));
  // Two of them, and their gradients.
  EXPECT_THAT(said[0], HasSubstr(" and 3 more"));
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
           {"cudaMemcpyAsync", cudaErrorIllegalAddress, 30, v1::Failure::GPU_FAULT},
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
    // Fed: a copy for each step, however many of them are launched at once.
    const auto outcome = TrainFor(40, &recorder, kFed);
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

// Samples are what a device has room for beside everything else, and no training fails for them.
TEST_F(CudaFaults, SamplesForWhichThereIsNoMemoryAreFed) {
  constexpr int64_t kSampleBytes = 96 * (784 + 4);
  int64_t needed = 0;
  Recorder fed;
  fed.on_event = [&](const v1::JobEvent&) {
    needed = std::max(needed, cuda_on_host::DeviceBytes());
    return absl::OkStatus();
  };
  ASSERT_TRUE(TrainFor(20, &fed, kFed).ok());
  const auto losses_with = [&](int64_t memory, const std::string& cache, bool on_device) {
    SCOPED_TRACE(absl::StrCat(memory, " ", cache));
    cuda_on_host::Reset();
    cuda_on_host::SetMemory(memory);
    Recorder recorder;
    const auto outcome = TrainFor(20, &recorder, cache);
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(LieOnDevice(recorder), on_device);
    EXPECT_EQ(recorder.losses(), fed.losses());
  };
  const std::string all = "data { device_cache { max_bytes: 1000000000 } }";
  losses_with(needed + 100, all, false);
  // They would leave nothing for what is made later.
  losses_with(needed + kSampleBytes + 100, all, false);
  losses_with(needed + 2 * kSampleBytes, all, true);
  // A sixteenth of what is left.
  losses_with(needed + 15 * kSampleBytes, "", false);
  losses_with(needed + 17 * kSampleBytes, "", true);
  losses_with(needed + 100 * kSampleBytes, "data { device_cache { max_bytes: 75647 } }", false);
  losses_with(needed + 100 * kSampleBytes, "data { device_cache { max_bytes: 75648 } }", true);
  losses_with(needed + 100 * kSampleBytes, "resources { share: true }", false);
  losses_with(needed + 100 * kSampleBytes, "resources { share: true } data { device_cache { max_bytes: 75648 } }",
              true);
}

TEST_F(CudaFaults, ADeviceThatFailsWhileSamplesAreUploadedEndsTheTraining) {
  Recorder whole;
  ASSERT_TRUE(TrainFor(1, &whole).ok());
  const std::vector<std::string> calls = cuda_on_host::Calls();
  // The first copies after the last page-locked memory are the samples'.
  const auto last = std::find(calls.rbegin(), calls.rend(), "cudaHostAlloc").base();
  const auto before = static_cast<int>(std::count(calls.begin(), last, "cudaMemcpyAsync"));
  cuda_on_host::Reset();
  cuda_on_host::Fail("cudaMemcpyAsync", cudaErrorIllegalAddress, before + 1);
  Recorder recorder;
  const auto outcome = TrainFor(1, &recorder);
  EXPECT_EQ(FailureOf(outcome.status()).class_(), v1::Failure::GPU_FAULT) << outcome.status();
  EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("training samples"));
  cuda_on_host::Reset();
}

}  // namespace
}  // namespace ampd::train
