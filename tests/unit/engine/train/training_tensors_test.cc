// Which files of tensors a training takes over.
#include "engine/train/training_tensors.h"

#include <string>
#include <vector>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/core/status.h"
#include "engine/train/failure.h"
#include "engine/train/planned_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using ::testing::HasSubstr;

// Nobody reads "dead".
const std::string kDeadLayer =
    "model { layers { name: 'a' dense { units: 5 } } layers { name: 'dead' dense { units: 7 } }"
    "        layers { name: 'b' inputs: 'a' dense { units: 3 } } loss { softmax_cross_entropy {} } }"
    "data { train { glyphs {} } } train { batch_size: 4 } optimizer { adam { learning_rate: 0.1 } }";

Safetensors File(const std::vector<TensorSource>& tensors) {
  std::string file;
  EXPECT_TRUE(WriteSafetensors(tensors, [&](absl::string_view bytes) {
                file.append(bytes.data(), bytes.size());
                return absl::OkStatus();
              }).ok());
  return Safetensors::Parse(std::move(file)).value();
}

TEST(TrainingTensors, MomentsOfWhatIsNotTrainedMayBeThere) {
  const ResolvedJobSpec spec = Spec({kDeadLayer});
  const auto plan = PlanModel(spec, {.input_shape = {4}, .classes = 3}, MakeCpuBackend(1), 1).value();
  const auto loaded = LoadedModel::Create(*plan).value();
  ASSERT_TRUE(loaded->memory.Initialize(7).ok());
  const std::vector<PhaseMoments> moments = MomentsOf(*plan, loaded->moments);
  std::vector<TensorSource> tensors = OptimizerTensors(&loaded->memory, moments);
  ASSERT_EQ(tensors.size(), 8u);

  const std::vector<float> values(28);
  const auto add = [&](const std::string& name) {
    tensors.push_back({name, DType::kF32, {7, 4}, [&values]() -> absl::StatusOr<absl::string_view> {
                         return absl::string_view(reinterpret_cast<const char*>(values.data()), 4 * values.size());
                       }});
  };
  // As builds wrote them that decayed such layers.
  add("dead.weight.m1");
  add("dead.weight.m2");
  EXPECT_TRUE(LoadOptimizer(File(tensors), &loaded->memory, moments).ok());
  add("dead.weight.m3");
  EXPECT_THAT(LoadOptimizer(File(tensors), &loaded->memory, moments).ToString(),
              HasSubstr("optimizer.safetensors: tensor 'dead.weight.m3' is none of the model's 8"));
  tensors.pop_back();
  add("deaf.weight.m1");
  EXPECT_THAT(LoadOptimizer(File(tensors), &loaded->memory, moments).ToString(), HasSubstr("'deaf.weight.m1'"));
  // A parameter's own are all needed.
  tensors.pop_back();
  tensors.erase(tensors.begin());
  EXPECT_THAT(LoadOptimizer(File(tensors), &loaded->memory, moments).ToString(), HasSubstr("no tensor 'a."));
}

// Another attempt would find the same.
TEST(TrainingTensors, WhatDoesNotFitIsNotTriedAgain) {
  const ResolvedJobSpec spec = Spec({kDeadLayer});
  const auto plan = PlanModel(spec, {.input_shape = {4}, .classes = 3}, MakeCpuBackend(1), 1).value();
  const auto loaded = LoadedModel::Create(*plan).value();
  ASSERT_TRUE(loaded->memory.Initialize(7).ok());
  std::vector<TensorSource> model = ModelTensors(&loaded->memory);
  model.pop_back();
  std::vector<TensorSource> narrow = ModelTensors(&loaded->memory);
  const float one = 1;
  narrow[0].shape = {1};
  narrow[0].bytes = [&one]() -> absl::StatusOr<absl::string_view> {
    return absl::string_view(reinterpret_cast<const char*>(&one), sizeof(one));
  };
  std::vector<TensorSource> optimizer = OptimizerTensors(&loaded->memory, MomentsOf(*plan, loaded->moments));
  // As an FP8 scale of another build.
  optimizer.push_back({"a.dense.grad.amax_count", DType::kF32, {1}, narrow[0].bytes});
  for (const absl::Status& status :
       {LoadModel(File(model), &loaded->memory), LoadModel(File(narrow), &loaded->memory),
        LoadOptimizer(File(optimizer), &loaded->memory, MomentsOf(*plan, loaded->moments))}) {
    const v1::Failure failure = FailureOf(Annotate(status, "step-000000012"));
    EXPECT_EQ(failure.class_(), v1::Failure::INVALID_SPEC) << status;
    EXPECT_THAT(failure.message(), HasSubstr("a new job can start from its weights alone (start_from.job_id"));
  }
}

}  // namespace
}  // namespace ampd::train
