#include "server/service/submit_warnings.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/spec/resolve.h"
#include "proto/spec/yaml.h"

namespace ampd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int64_t kGiB = int64_t{1} << 30;

v1::JobSpec Spec(const std::vector<std::string>& sets) {
  v1::JobSpec spec;
  std::vector<std::string> all = {"model={layers: [{dense: {units: 10}}], loss: {softmax_cross_entropy: {}}}",
                                  "data.train={glyphs: {}}"};
  all.insert(all.end(), sets.begin(), sets.end());
  for (const std::string& set : all) EXPECT_TRUE(ApplySet(&spec, set).ok()) << set;
  const auto resolved = ResolveJobSpec(std::move(spec));
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return resolved.ok() ? resolved->proto() : v1::JobSpec();
}

v1::Device Cpu(const std::string& id, int64_t memory_bytes) {
  v1::Device device;
  device.set_id(id);
  device.set_kind(v1::Device::CPU);
  if (memory_bytes > 0) device.set_memory_total_bytes(memory_bytes);
  return device;
}

std::vector<std::string> WarningsOf(const std::vector<std::string>& sets) {
  return SubmitWarnings(Spec(sets), v1::PlanResponse(), {});
}

TEST(SubmitWarningsTest, AJobWithNothingOddHasNone) {
  EXPECT_THAT(WarningsOf({}), IsEmpty());
  EXPECT_THAT(WarningsOf({"train={steps: 100}", "optimizer.schedule={cosine: {warmup_steps: 100}}"}), IsEmpty());
}

TEST(SubmitWarningsTest, DataThatCouldNotBeReadIsToldInItsWords) {
  v1::PlanResponse planned;
  planned.set_data_error("data.train: x.npy: no such file");
  EXPECT_THAT(SubmitWarnings(Spec({}), planned, {}), ElementsAre(StartsWith("data.train: x.npy: no such file; ")));
}

TEST(SubmitWarningsTest, APlanBeyondEveryDeviceIsToldWithTheLargest) {
  v1::PlanResponse planned;
  planned.mutable_plan()->set_parameter_bytes(4 * kGiB);
  planned.mutable_plan()->set_activation_bytes(6 * kGiB);
  const auto warnings = [&](const std::vector<v1::Device>& devices, const std::vector<std::string>& sets = {}) {
    return SubmitWarnings(Spec(sets), planned, devices);
  };
  EXPECT_THAT(warnings({Cpu("cpu-0", 8 * kGiB), Cpu("cpu-1", 9 * kGiB)}),
              ElementsAre(AllOf(StartsWith("resources: "), HasSubstr("10 GiB"), HasSubstr("cpu-1, 9 GiB"),
                                HasSubstr("ampctl plan"), HasSubstr("micro_batch_size"))));
  EXPECT_THAT(warnings({Cpu("cpu-0", 8 * kGiB), Cpu("cpu-1", 11 * kGiB)}), IsEmpty());
  EXPECT_THAT(warnings({Cpu("cpu-0", 8 * kGiB), Cpu("cpu-1", 0)}), IsEmpty()) << "not known";
  EXPECT_THAT(warnings({Cpu("cpu-0", 8 * kGiB), Cpu("cpu-1", 11 * kGiB)}, {"resources.device=cpu-0"}),
              ElementsAre(HasSubstr("cpu-0, 8 GiB")));
  EXPECT_THAT(warnings({Cpu("cpu-0", 8 * kGiB)}, {"bench={}"}), IsEmpty());
  // Of a plan for the CPU's kernels a GPU may take four fifths.
  v1::Device gpu = Cpu("gpu-0", 9 * kGiB);
  gpu.set_kind(v1::Device::CUDA);
  EXPECT_THAT(warnings({gpu}), IsEmpty());
  gpu.set_memory_total_bytes(7 * kGiB);
  EXPECT_THAT(warnings({gpu}), Not(IsEmpty()));
}

TEST(SubmitWarningsTest, StepsThatTheJobNeverComesToAreTold) {
  const struct {
    const char* schedule;
    const char* field;
  } kCases[] = {
      {"{constant: {warmup_steps: 101}}", "constant.warmup_steps: is 101, and the job takes 100 steps"},
      {"{linear: {warmup_steps: 101}}", "linear.warmup_steps"},
      {"{cosine: {warmup_steps: 5000}}", "cosine.warmup_steps: is 5000, "},
      {"{polynomial: {warmup_steps: 101}}", "polynomial.warmup_steps"},
      {"{inverse_square_root: {}}", "inverse_square_root.warmup_steps: is 4000"},
      {"{step: {every_steps: 100}}", "step.every_steps"},
      {"{multi_step: {milestones: [50, 100, 200]}}", "multi_step.milestones[1]: is 100, "},
      {"{cosine_restarts: {period_steps: 101}}", "cosine_restarts.period_steps"},
  };
  for (const auto& [schedule, field] : kCases) {
    const std::string set = std::string("optimizer.schedule=") + schedule;
    EXPECT_THAT(WarningsOf({"train={steps: 100}", set}),
                ElementsAre(StartsWith(std::string("optimizer.schedule.") + field)))
        << schedule;
    EXPECT_THAT(WarningsOf({"train={steps: 10000}", set}), IsEmpty()) << schedule;
  }
}

}  // namespace
}  // namespace ampd
