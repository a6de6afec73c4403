#include "server/scheduling/capability.h"

#include <gmock/gmock.h>

#include <functional>

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using Precision = v1::PrecisionSpec;

v1::Device Gpu(const std::string& id, const std::string& name, int major, int minor) {
  v1::Device device;
  device.set_id(id);
  device.set_kind(v1::Device::CUDA);
  device.set_name(name);
  device.mutable_gpu()->set_compute_capability_major(major);
  device.mutable_gpu()->set_compute_capability_minor(minor);
  return device;
}

v1::Device Cpu() {
  v1::Device device;
  device.set_id("cpu-0");
  device.set_kind(v1::Device::CPU);
  return device;
}

v1::JobSpec Spec(Precision::Mode mode) {
  v1::JobSpec spec;
  spec.mutable_precision()->set_mode(mode);
  return spec;
}

TEST(Capability, AutoNeedsWhatItNamesAndMeasurementsNothing) {
  const v1::Device t4 = Gpu("GPU-a", "Tesla T4", 7, 5);
  v1::JobSpec spec = Spec(Precision::AUTO);
  EXPECT_TRUE(CanRun(spec, t4)) << "it compares what the device can do";
  spec.mutable_precision()->mutable_auto_()->add_modes(Precision::FP16);
  EXPECT_TRUE(CanRun(spec, t4));
  spec.mutable_precision()->mutable_auto_()->add_modes(Precision::BF16);
  const std::vector<FieldViolation> refusals = Refusals(spec, t4);
  ASSERT_THAT(refusals, SizeIs(1));
  EXPECT_EQ(refusals[0].field, "precision.auto.modes[1]");
  EXPECT_TRUE(CanRun(spec, Cpu()));
  v1::JobSpec bench = Spec(Precision::FP8);
  bench.mutable_bench()->add_modes(Precision::BF16);
  EXPECT_TRUE(CanRun(bench, t4)) << "such a cell says that it cannot";
}

TEST(Capability, EverythingThatASelectorGivesMustHold) {
  v1::Device t4 = Gpu("GPU-a", "Tesla T4", 7, 5);
  t4.set_memory_total_bytes(16);
  const auto refused = [&](const std::function<void(v1::DeviceSelector*)>& select, const v1::Device& device) {
    v1::JobSpec spec = Spec(Precision::FP32);
    select(spec.mutable_resources()->mutable_selector());
    std::vector<std::string> fields;
    for (const FieldViolation& refusal : Refusals(spec, device)) fields.push_back(refusal.field);
    return fields;
  };
  const auto none = ElementsAre();
  EXPECT_THAT(refused([](auto*) {}, t4), none);
  const auto kind = [](auto* selector) { selector->set_kind(v1::Device::CUDA); };
  EXPECT_THAT(refused(kind, t4), none);
  EXPECT_THAT(refused(kind, Cpu()), ElementsAre("resources.selector.kind"));
  const auto words = [](std::vector<std::string> all) {
    return [all](auto* selector) { selector->mutable_words()->Assign(all.begin(), all.end()); };
  };
  EXPECT_THAT(refused(words({"t4"}), t4), none) << "in any case";
  EXPECT_THAT(refused(words({"T4", "tesla"}), t4), none);
  EXPECT_THAT(refused(words({"T"}), t4), ElementsAre("resources.selector.words[0]")) << "a word, not a part of one";
  EXPECT_THAT(refused(words({"T4", "H100"}), t4), ElementsAre("resources.selector.words[1]"));
  const auto memory = [](int64_t bytes) { return [bytes](auto* selector) { selector->set_min_memory_bytes(bytes); }; };
  EXPECT_THAT(refused(memory(16), t4), none);
  EXPECT_THAT(refused(memory(17), t4), ElementsAre("resources.selector.min_memory_bytes"));
  const auto capability = [](double least) {
    return [least](auto* selector) { selector->set_min_compute_capability(least); };
  };
  EXPECT_THAT(refused(capability(7.5), t4), none);
  EXPECT_THAT(refused(capability(8.0), t4), ElementsAre("resources.selector.min_compute_capability"));
  EXPECT_THAT(refused(capability(7.5), Cpu()), ElementsAre("resources.selector.min_compute_capability"));
}

// The table, GPU by GPU: Pascal, Volta, Turing, Ampere (both), Ada, Hopper, Blackwell (both).
TEST(Capability, EveryModeOnEveryGeneration) {
  struct Row {
    int major, minor;
    const char* modes;
  };
  const Row rows[] = {{6, 1, "FP32"},
                      {7, 0, "FP32 FP16"},
                      {7, 5, "FP32 FP16"},
                      {8, 0, "FP32 TF32 FP16 BF16"},
                      {8, 6, "FP32 TF32 FP16 BF16"},
                      {8, 9, "FP32 TF32 FP16 BF16 FP8"},
                      {9, 0, "FP32 TF32 FP16 BF16 FP8"},
                      {10, 0, "FP32 TF32 FP16 BF16 FP8"},
                      {12, 0, "FP32 TF32 FP16 BF16 FP8"}};
  for (const Row& row : rows) {
    std::string modes;
    for (const auto mode : {Precision::FP32, Precision::TF32, Precision::FP16, Precision::BF16, Precision::FP8}) {
      if (!CanRun(Spec(mode), Gpu("GPU-a", "x", row.major, row.minor))) continue;
      modes += (modes.empty() ? "" : " ") + Precision::Mode_Name(mode);
    }
    EXPECT_EQ(modes, row.modes) << row.major << "." << row.minor;
  }
}

TEST(Capability, TheCpuCanDoEverythingAndAnUnknownGpuIsNotRefused) {
  EXPECT_TRUE(CanRun(Spec(Precision::FP8), Cpu()));
  v1::Device unknown = Gpu("GPU-a", "x", 0, 0);
  unknown.mutable_gpu()->clear_compute_capability_major();
  EXPECT_TRUE(CanRun(Spec(Precision::FP8), unknown));
}

TEST(Capability, ARefusalNamesModeDeviceAndCapability) {
  const auto status = CheckDevices(Spec(Precision::BF16), {Gpu("GPU-a", "Tesla T4", 7, 5)});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const auto violations = FieldViolationsOf(status);
  ASSERT_THAT(violations, SizeIs(1));
  EXPECT_EQ(violations[0].field, "precision.mode");
  EXPECT_EQ(violations[0].description,
            "no device can run this job: BF16 needs compute capability 8.0 or later; Tesla T4 (GPU-a) has 7.5");
  EXPECT_THAT(Refusals(Spec(Precision::FP16), Gpu("GPU-p", "Tesla P40", 6, 1))[0].description,
              HasSubstr("Tesla P40 (GPU-p) has 6.1, and no tensor cores"));
}

TEST(Capability, OneDeviceThatCanIsEnough) {
  EXPECT_TRUE(CheckDevices(Spec(Precision::BF16), {Gpu("GPU-a", "Tesla T4", 7, 5), Cpu()}).ok());
  const auto none = CheckDevices(Spec(Precision::FP8), {Gpu("GPU-a", "Tesla T4", 7, 5), Gpu("GPU-b", "A100", 8, 0)});
  const auto violations = FieldViolationsOf(none);
  ASSERT_THAT(violations, SizeIs(1));
  EXPECT_THAT(violations[0].description, HasSubstr("Tesla T4 (GPU-a) has 7.5; FP8 needs"));
  EXPECT_THAT(violations[0].description, HasSubstr("A100 (GPU-b) has 8.0"));
}

TEST(Capability, RulesAndTheFloorNeedModesToo) {
  v1::JobSpec spec = Spec(Precision::FP16);
  spec.mutable_precision()->add_rules()->set_dtype(Precision::FP32);
  spec.mutable_precision()->add_rules()->set_dtype(Precision::TF32);
  spec.mutable_precision()->mutable_loss_scale()->set_on_floor(v1::LossScaleSpec::FALLBACK_BF16);
  const auto refusals = Refusals(spec, Gpu("GPU-a", "Tesla T4", 7, 5));
  ASSERT_THAT(refusals, SizeIs(2));
  EXPECT_EQ(refusals[0].field, "precision.rules[1].dtype");
  EXPECT_EQ(refusals[1].field, "precision.loss_scale.on_floor");
}

TEST(Capability, AJobMayNameItsDevice) {
  v1::JobSpec spec = Spec(Precision::BF16);
  const std::vector<v1::Device> devices = {Gpu("GPU-a", "Tesla T4", 7, 5), Cpu()};
  spec.mutable_resources()->set_device("cpu-0");
  EXPECT_TRUE(CheckDevices(spec, devices).ok());
  EXPECT_FALSE(CanRun(spec, devices[0]));
  spec.mutable_resources()->set_device("GPU-a");
  EXPECT_EQ(FieldViolationsOf(CheckDevices(spec, devices))[0].field, "precision.mode");
  spec.mutable_resources()->set_device("GPU-z");
  const auto violations = FieldViolationsOf(CheckDevices(spec, devices));
  EXPECT_EQ(violations[0].field, "resources.device");
  EXPECT_EQ(violations[0].description, "no such device; there are Tesla T4 (GPU-a), cpu-0");
}

TEST(Capability, AJobOfMoreDevicesThanAUserMayHoldIsRefused) {
  v1::JobSpec spec = Spec(Precision::BF16);
  spec.mutable_resources()->set_gpus(3);
  EXPECT_TRUE(CheckDeviceQuota(spec, 0).ok());
  EXPECT_TRUE(CheckDeviceQuota(spec, 3).ok());
  const auto violations = FieldViolationsOf(CheckDeviceQuota(spec, 2));
  ASSERT_THAT(violations, SizeIs(1));
  EXPECT_EQ(violations[0].field, "resources.gpus");
  EXPECT_EQ(violations[0].description,
            "is 3; a user's jobs may hold at most 2 at the same time (max_running_devices_per_user)");
}

TEST(Capability, ConditionsThatPassDoNotCount) {
  v1::Device device = Gpu("GPU-a", "NVIDIA H200", 9, 0);
  v1::DeviceCondition& condition = *device.add_conditions();
  condition.set_blocks_jobs(true);
  for (const auto kind :
       {v1::DeviceCondition::FOREIGN_PROCESS, v1::DeviceCondition::GPU_LOST, v1::DeviceCondition::NO_ANSWER,
        v1::DeviceCondition::HARDWARE_ERROR, v1::DeviceCondition::MIG_ENABLED}) {
    condition.set_kind(kind);
    EXPECT_THAT(Refusals(Spec(Precision::FP8), device), IsEmpty()) << v1::DeviceCondition::Kind_Name(kind);
  }
  condition.set_kind(v1::DeviceCondition::DRIVER_TOO_OLD);
  condition.set_message("driver 535 is old");
  const auto refusals = Refusals(Spec(Precision::FP8), device);
  ASSERT_THAT(refusals, Not(IsEmpty()));
  EXPECT_EQ(refusals[0].field, "resources");
  EXPECT_EQ(refusals[0].description, "NVIDIA H200 (GPU-a): DRIVER_TOO_OLD: driver 535 is old");
}

}  // namespace
}  // namespace ampd
