// Trainings on several emulated CUDA devices, whose sums a stand-in for NCCL makes in the order of ranks.
#include <algorithm>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend/cuda_backend.h"
#include "engine/backend/nccl_collective.h"
#include "engine/core/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/cuda_on_host/cuda_on_host.h"
#include "tests/unit/engine/train/device_jobs.h"

namespace ampd::train {
namespace {

using ::testing::HasSubstr;

// Twelve steps of two micro-batches of eight.
const std::string kMlp =
    "model { layers { flatten {} } layers { name: 'in' dense { units: 16 bias: false activation: GELU } }"
    "        layers { dense { units: 16 bias: false } } loss { sigmoid_cross_entropy {} } }"
    "data { train { glyphs { samples: 96 } } eval { glyphs { samples: 40 } } }"
    "train { batch_size: 16 micro_batch_size: 8 epochs: 2 } report { every_steps: 1 } seed: 5 ";
// Overflows at first, then grows, and overflows again.
const std::string kScaled = "precision { mode: FP16 loss_scale { init: 3e7 growth_interval: 2 } }";

std::string Uuid(int device) { return absl::StrCat("GPU-616d7064-2d65-6d75-6c61-7465642d3", device, "00"); }

class CudaDataParallel : public ::testing::Test {
 protected:
  void SetUp() override {
    cuda_on_host::Reset();
    cuda_on_host::SetDevices(4);
  }
  void TearDown() override { cuda_on_host::Reset(); }
  static TrainerOptions On(const ScratchFolder& folder, int devices) {
    TrainerOptions options = Options(folder.path());
    for (int i = 0; i < devices; ++i) options.devices.push_back(Uuid(i));
    options.steps = StepMode::kHost;
    options.gradient_bucket_bytes = 1024;
    options.compare_replicas = true;
    return options;
  }
};

TEST_F(CudaDataParallel, GivesTheBitsOfOneDevice) {
  for (const std::string& more : {std::string("optimizer { adamw {} ema { evaluate: true } clip_global_norm: 1 }"),
                                  kScaled + "optimizer { adam {} }"}) {
    SCOPED_TRACE(more);
    const ResolvedJobSpec spec = Spec({kMlp, more});
    const ScratchFolder one_folder, all_folder;
    Recorder one, all;
    auto outcome = Train(spec, On(one_folder, 1), &one);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    outcome = Train(spec, On(all_folder, 2), &all);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(Told(all), Told(one));
    EXPECT_EQ(ManifestOf(all_folder), ManifestOf(one_folder));
    EXPECT_NE(ManifestOf(all_folder), "none");
    EXPECT_EQ(all.skips().empty(), more.find("FP16") == std::string::npos);
  }
}

TEST_F(CudaDataParallel, LeavesNothingBehind) {
  const int64_t bytes = cuda_on_host::DeviceBytes(), handles = cuda_on_host::Handles();
  const ScratchFolder folder;
  Recorder recorder;
  ASSERT_TRUE(Train(Spec({kMlp}), On(folder, 2), &recorder).ok());
  EXPECT_EQ(cuda_on_host::DeviceBytes(), bytes);
  EXPECT_EQ(cuda_on_host::Handles(), handles);
}

TEST_F(CudaDataParallel, ADeviceThatFailsEndsTheJob) {
  const ScratchFolder folder;
  // Amid the steps, whichever replica makes the call.
  cuda_on_host::Fail("kernel", cudaErrorLaunchFailure, 250);
  auto outcome = std::async(std::launch::async, [&] {
    Recorder recorder;
    return Train(Spec({kMlp}), On(folder, 2), &recorder).status();
  });
  if (outcome.wait_for(std::chrono::seconds(60)) != std::future_status::ready) {
    ADD_FAILURE() << "the training hangs";
    std::abort();
  }
  const absl::Status status = outcome.get();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("on device GPU-"));
}

// One replica is told to stop while the other already waits for its part of a sum.
TEST_F(CudaDataParallel, AReplicaThatFailsEndsTheSumsOfOthers) {
  std::vector<std::unique_ptr<runtime::Backend>> backends;
  for (int i = 0; i < 2; ++i) backends.push_back(MakeCudaBackend(Uuid(i)).value());
  std::vector<runtime::Backend*> borrowed = {backends[0].get(), backends[1].get()};
  auto collectives = MakeNcclCollectives(borrowed);
  ASSERT_TRUE(collectives.ok()) << collectives.status();
  runtime::Buffer arena = runtime::Buffer::Allocate(backends[0]->memory(), 64, "arena").value();
  const std::vector<runtime::ArenaSlot> range = {{0, 16}};
  auto sum = std::async(std::launch::async, [&]() -> absl::Status {
    AMPD_RETURN_IF_ERROR((*collectives)[0]->AllReduceSum(reinterpret_cast<float*>(arena.data()), range));
    return (*collectives)[0]->Finish();
  });
  (*collectives)[1]->group()->Abort(absl::InternalError("replica 1 is gone"));
  if (sum.wait_for(std::chrono::seconds(60)) != std::future_status::ready) {
    ADD_FAILURE() << "the sum hangs";
    std::abort();
  }
  EXPECT_EQ(sum.get(), absl::InternalError("replica 1 is gone"));
  collectives->clear();
}

// NCCL's word for a failure of CUDA's does not tell whose fault it is.
TEST_F(CudaDataParallel, OnlyADeviceThatFailedIsAFailedDevice) {
  for (const cudaError_t error : {cudaErrorInvalidValue, cudaErrorIllegalAddress}) {
    std::vector<std::unique_ptr<runtime::Backend>> backends;
    for (int i = 0; i < 2; ++i) backends.push_back(MakeCudaBackend(Uuid(i)).value());
    std::vector<runtime::Backend*> borrowed = {backends[0].get(), backends[1].get()};
    auto collectives = MakeNcclCollectives(borrowed);
    ASSERT_TRUE(collectives.ok()) << collectives.status();
    runtime::Buffer arena = runtime::Buffer::Allocate(backends[0]->memory(), 64, "arena").value();
    const std::vector<runtime::ArenaSlot> range = {{0, 16}};
    cuda_on_host::Fail("cudaStreamIsCapturing", error);
    const absl::Status status = (*collectives)[0]->AllReduceSum(reinterpret_cast<float*>(arena.data()), range);
    EXPECT_EQ(status.code(),
              error == cudaErrorInvalidValue ? absl::StatusCode::kInternal : absl::StatusCode::kUnavailable)
        << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("[nccl] sum of gradients: error: Cuda failure '"));
  }
}

}  // namespace
}  // namespace ampd::train
