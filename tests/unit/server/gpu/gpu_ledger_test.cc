#include "server/gpu/gpu_ledger.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "server/gpu/worker_fit.h"
#include "server/gpu/xid.h"

namespace ampd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<v1::Device> OneGpu() {
  v1::Device device;
  device.set_id("GPU-a");
  device.set_name("NVIDIA H200");
  device.mutable_gpu()->set_driver_version("580.1");
  return {device};
}

v1::Device Reading(double watts) {
  v1::Device device;
  device.set_memory_used_bytes(7);
  device.mutable_gpu()->set_power_watts(watts);
  return device;
}

TEST(GpuLedger, AReadingTakesThePlaceOfTheOneBefore) {
  GpuLedger ledger(OneGpu());
  v1::Device first = Reading(100);
  first.mutable_gpu()->set_temperature_celsius(50);
  ledger.OnReading(0, first);
  ledger.OnReading(0, Reading(200));
  const v1::Device device = ledger.Devices()[0];
  EXPECT_EQ(device.id(), "GPU-a");
  EXPECT_EQ(device.gpu().driver_version(), "580.1");
  EXPECT_EQ(device.memory_used_bytes(), 7);
  EXPECT_EQ(device.gpu().power_watts(), 200);
  EXPECT_FALSE(device.gpu().has_temperature_celsius());
  EXPECT_THAT(device.conditions(), IsEmpty());
}

TEST(GpuLedger, MigIsACondition) {
  GpuLedger ledger(OneGpu());
  v1::Device reading = Reading(1);
  reading.mutable_gpu()->set_mig_enabled(true);
  ledger.OnReading(0, reading);
  const v1::Device device = ledger.Devices()[0];
  ASSERT_THAT(device.conditions(), SizeIs(1));
  EXPECT_EQ(device.conditions(0).kind(), v1::DeviceCondition::MIG_ENABLED);
  EXPECT_TRUE(device.conditions(0).blocks_jobs());
}

TEST(GpuLedger, AnErrorOfAnApplicationIsNoConditionOfTheGpu) {
  GpuLedger ledger(OneGpu());
  const absl::Time now = absl::FromUnixSeconds(1000);
  EXPECT_EQ(ledger.OnXid({0, 31}, now), "GPU-a (NVIDIA H200): XID 31: memory page fault (APPLICATION)");
  ledger.OnXid({0, 31}, now + absl::Seconds(5));
  const v1::Device device = ledger.Devices()[0];
  EXPECT_THAT(device.conditions(), IsEmpty());
  ASSERT_THAT(device.gpu().xid_errors(), SizeIs(1));
  const v1::XidError& error = device.gpu().xid_errors(0);
  EXPECT_EQ(error.xid(), 31u);
  EXPECT_EQ(error.class_(), v1::XidError::APPLICATION);
  EXPECT_EQ(error.count(), 2);
  EXPECT_EQ(error.time().seconds(), 1005);
}

TEST(GpuLedger, AnErrorOfTheHardwareHoldsTheGpuUntilTheServerRestarts) {
  GpuLedger ledger(OneGpu());
  const absl::Time now = absl::FromUnixSeconds(1000);
  ledger.OnXid({0, 63}, now);
  EXPECT_FALSE(ledger.Devices()[0].conditions(0).blocks_jobs());
  ledger.OnXid({0, 79}, now);
  ledger.OnXid({0, 63}, now);
  ledger.OnXid({0, 13}, now);
  ledger.OnReading(0, Reading(1));
  const v1::Device device = ledger.Devices()[0];
  ASSERT_THAT(device.conditions(), SizeIs(1));
  EXPECT_EQ(device.conditions(0).kind(), v1::DeviceCondition::HARDWARE_ERROR);
  EXPECT_TRUE(device.conditions(0).blocks_jobs());
  EXPECT_THAT(device.conditions(0).message(), HasSubstr("XID 79: the GPU has fallen off the bus; reset"));
}

TEST(GpuLedger, RemembersTheNewestErrors) {
  GpuLedger ledger(OneGpu());
  for (uint32_t xid = 200; xid < 300; ++xid) ledger.OnXid({0, xid}, absl::FromUnixSeconds(xid));
  const v1::Device device = ledger.Devices()[0];
  ASSERT_THAT(device.gpu().xid_errors(), SizeIs(16));
  EXPECT_EQ(device.gpu().xid_errors(0).xid(), 284u);
  EXPECT_EQ(device.gpu().xid_errors(15).xid(), 299u);
}

TEST(Xid, AnUnknownNumberIsOfTheHardware) {
  EXPECT_EQ(MeaningOfXid(13).error_class, v1::XidError::APPLICATION);
  EXPECT_EQ(MeaningOfXid(12345).error_class, v1::XidError::HARDWARE);
  EXPECT_TRUE(MeaningOfXid(12345).needs_reset);
  EXPECT_FALSE(MeaningOfXid(94).needs_reset);
}

v1::GpuStatus Gpu(const std::string& cuda, int major, int minor) {
  v1::GpuStatus gpu;
  gpu.set_driver_version("535.104.05");
  gpu.set_cuda_driver_version(cuda);
  gpu.set_compute_capability_major(major);
  gpu.set_compute_capability_minor(minor);
  return gpu;
}

v1::WorkerBuild Build(int cuda, int capability) {
  v1::WorkerBuild build;
  build.set_cuda_version(cuda);
  build.set_min_compute_capability(capability);
  return build;
}

TEST(WorkerFit, ADriverOfTheBuildsMajorVersionFits) {
  EXPECT_THAT(WorkerFit(Build(13010, 75), Gpu("13.0", 9, 0)), IsEmpty());
  EXPECT_THAT(WorkerFit(Build(12080, 70), Gpu("13.0", 7, 5)), IsEmpty());
  EXPECT_THAT(WorkerFit(Build(13000, 75), v1::GpuStatus()), IsEmpty()) << "nothing is known of it";
}

TEST(WorkerFit, NamesBothVersions) {
  const auto conditions = WorkerFit(Build(13000, 75), Gpu("12.2", 9, 0));
  ASSERT_THAT(conditions, SizeIs(1));
  EXPECT_EQ(conditions[0].kind(), v1::DeviceCondition::DRIVER_TOO_OLD);
  EXPECT_TRUE(conditions[0].blocks_jobs());
  EXPECT_EQ(conditions[0].message(),
            "driver 535.104.05 supports CUDA 12.2, but the workers are built with CUDA 13.0, which needs a driver for "
            "CUDA 13");
}

TEST(WorkerFit, WhatTheWorkersLack) {
  auto conditions = WorkerFit(Build(13000, 90), Gpu("13.0", 8, 9));
  ASSERT_THAT(conditions, SizeIs(1));
  EXPECT_EQ(conditions[0].kind(), v1::DeviceCondition::UNSUPPORTED_ARCHITECTURE);
  EXPECT_EQ(conditions[0].message(), "compute capability 8.9, but the workers are built for 9.0 and later");
  conditions = WorkerFit(v1::WorkerBuild(), Gpu("13.0", 9, 0));
  ASSERT_THAT(conditions, SizeIs(1));
  EXPECT_EQ(conditions[0].kind(), v1::DeviceCondition::NO_CUDA_BUILD);
}

}  // namespace
}  // namespace ampd
