// Tests that train device_jobs.h's jobs on the CUDA backend; they skip where there is no device.
#ifndef AMPD_TESTS_UNIT_ENGINE_TRAIN_CUDA_JOB_TEST_H_
#define AMPD_TESTS_UNIT_ENGINE_TRAIN_CUDA_JOB_TEST_H_

#include "engine/backend/cuda_backend.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/device_jobs.h"

namespace ampd::train {

class CudaJobTest : public ::testing::TestWithParam<Job> {
 protected:
  void SetUp() override {
    const auto backend = MakeCudaBackend("");
    if (!backend.ok()) GTEST_SKIP() << backend.status();
  }
  static TrainerOptions On(const ScratchFolder& folder, StepMode steps) {
    WriteSequences(folder.path());
    TrainerOptions options = Options(folder.path());
    options.steps = steps;
    options.make_backend = [] { return MakeCudaBackend("", AutotuneFolder()); };
    return options;
  }
};

}  // namespace ampd::train

#endif  // AMPD_TESTS_UNIT_ENGINE_TRAIN_CUDA_JOB_TEST_H_
