// What 16 bits save: the planned memory of the networks that tests/bench times.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "engine/train/files.h"
#include "engine/train/planned_model.h"
#include "proto/spec/resolve.h"
#include "proto/spec/yaml.h"

namespace ampd::train {
namespace {

constexpr int64_t kMegabyte = 1 << 20;

struct Workload {
  const char* file;
  models::SampleInfo sample;
};

// As tests/bench/step_speed.py runs them.
std::vector<Workload> Workloads() {
  return {{"convnet.yaml", {.input_shape = {64, 64, 3}, .classes = 10}},
          {"convnet.yaml", {.input_shape = {256, 256, 3}, .classes = 10}},
          {"resnet20.yaml", {.input_shape = {32, 32, 3}, .classes = 10}},
          {"lstm.yaml", {.input_shape = {64, 256}, .classes = 10}},
          {"transformer.yaml", {.input_shape = {128}, .classes = 1000, .label_shape = {128}}}};
}

std::unique_ptr<PlannedModel> Planned(const Workload& workload, const std::string& mode,
                                      const std::vector<std::string>& sets = {}) {
  const std::string path = std::string("tests/bench/workloads/") + workload.file;
  const auto text = ReadFile(path, kMegabyte);
  EXPECT_TRUE(text.ok()) << text.status();
  v1::JobSpec spec;
  EXPECT_TRUE(ParseYaml(*text, path, &spec).ok());
  EXPECT_TRUE(ApplySet(&spec, "precision.mode=" + mode).ok());
  for (const std::string& set : sets) EXPECT_TRUE(ApplySet(&spec, set).ok()) << set;
  auto resolved = ResolveJobSpec(std::move(spec));
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  auto plan = PlanModel(*resolved, workload.sample, MakeBackend("cpu-0", 2).value(), 2);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

// Tensors that steps hand to each other. What kernels take beside them is the backend's: the CPU, which has no fp16
// arithmetic, widens operands to f32 in its workspace. FP32 casts no batch, and every gradient is made in its place, so
// that small images in 16 bits take a little more than 0.55 of it.
TEST(ActivationMemory, SixteenBitsTakeLittleMoreThanHalf) {
  for (const Workload& workload : Workloads()) {
    const int64_t wide = Planned(workload, "FP32")->phases[0].plans[0].activation_bytes;
    ASSERT_GE(wide, kMegabyte) << workload.file;
    for (const char* mode : {"FP16", "BF16"}) {
      const int64_t narrow = Planned(workload, mode)->phases[0].plans[0].activation_bytes;
      EXPECT_LE(static_cast<double>(narrow), 0.56 * static_cast<double>(wide))
          << workload.file << " " << mode << ": " << narrow << " of " << wide << " bytes";
    }
  }
}

TEST(ActivationMemory, IsWithinTheArena) {
  for (const char* mode : {"FP32", "FP16", "BF16", "FP8"}) {
    const auto plan = Planned(Workloads()[0], mode);
    int64_t workspace = 0;
    for (const runtime::PlanStep& step : plan->phases[0].plans[0].steps) {
      workspace = std::max(workspace, step.kernel->workspace_bytes());
    }
    EXPECT_LE(plan->phases[0].plans[0].activation_bytes, plan->phases[0].plans[0].arena_bytes) << mode;
    EXPECT_LE(plan->phases[0].plans[0].arena_bytes, plan->phases[0].plans[0].activation_bytes + AlignUp(workspace))
        << mode;
  }
}

TEST(ActivationMemory, EvaluatingTakesNoMoreThanTraining) {
  for (const Workload& workload : Workloads()) {
    for (const char* mode : {"FP32", "FP16", "BF16", "FP8"}) {
      const auto plan = Planned(workload, mode, {"train.batch_size=128", "train.micro_batch_size=2"});
      EXPECT_LE(plan->eval.arena_bytes, plan->phases[0].arena_bytes()) << workload.file << " " << mode;
      EXPECT_EQ(plan->activation_bytes(), plan->phases[0].arena_bytes()) << workload.file << " " << mode;
    }
  }
}

}  // namespace
}  // namespace ampd::train
