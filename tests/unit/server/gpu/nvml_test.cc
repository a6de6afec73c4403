#include "server/gpu/nvml.h"

#include <gmock/gmock.h>

#include "tests/unit/server/gpu/fake_gpus.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class NvmlTest : public ::testing::Test {
 protected:
  std::unique_ptr<Nvml> Open(const std::string& library = "fake_nvml") {
    auto nvml = Nvml::Open(FakeLibrary(library));
    EXPECT_TRUE(nvml.ok()) << nvml.status();
    devices_ = (*nvml)->Identify(&problems_);
    return *std::move(nvml);
  }

  FakeGpus gpus_;
  std::vector<v1::Device> devices_;
  std::vector<std::string> problems_;
};

TEST_F(NvmlTest, IdentifiesGpusByUuid) {
  gpus_.Set(kTwoGpus);
  Open();
  ASSERT_EQ(devices_.size(), 2u);
  EXPECT_THAT(problems_, IsEmpty());
  EXPECT_EQ(devices_[0].id(), "GPU-aaaa");
  EXPECT_EQ(devices_[0].kind(), v1::Device::CUDA);
  EXPECT_EQ(devices_[0].name(), "NVIDIA H200");
  EXPECT_EQ(devices_[0].memory_total_bytes(), 1000);
  const v1::GpuStatus& gpu = devices_[0].gpu();
  EXPECT_EQ(gpu.pci_bus_id(), "00000000:4B:00.0");
  EXPECT_EQ(gpu.compute_capability_major(), 9);
  EXPECT_EQ(gpu.compute_capability_minor(), 0);
  EXPECT_EQ(gpu.driver_version(), "580.95.05");
  EXPECT_EQ(gpu.cuda_driver_version(), "13.0");
  EXPECT_EQ(devices_[1].id(), "GPU-bbbb");
  EXPECT_EQ(devices_[1].gpu().pci_bus_id(), "");
}

TEST_F(NvmlTest, ReadsEveryFigureInItsUnit) {
  gpus_.Set(kTwoGpus);
  auto nvml = Open();
  const v1::Device device = nvml->Read(0);
  EXPECT_THAT(device.conditions(), IsEmpty());
  EXPECT_EQ(device.memory_total_bytes(), 1000);
  EXPECT_EQ(device.memory_used_bytes(), 400);
  EXPECT_DOUBLE_EQ(device.utilization(), 0.75);
  const v1::GpuStatus& gpu = device.gpu();
  EXPECT_EQ(gpu.memory_free_bytes(), 600);
  EXPECT_DOUBLE_EQ(gpu.memory_utilization(), 0.3);
  EXPECT_DOUBLE_EQ(gpu.power_watts(), 350.5);
  EXPECT_DOUBLE_EQ(gpu.power_limit_watts(), 700);
  EXPECT_DOUBLE_EQ(gpu.energy_joules(), 123.456);
  EXPECT_DOUBLE_EQ(gpu.temperature_celsius(), 54);
  EXPECT_DOUBLE_EQ(gpu.sm_clock_hertz(), 1.98e9);
  EXPECT_DOUBLE_EQ(gpu.memory_clock_hertz(), 3.201e9);
  EXPECT_TRUE(gpu.throttled());
  // Bit 1 is idling, which is no throttling.
  EXPECT_THAT(gpu.throttle_reasons(), ElementsAre("SW_POWER_CAP"));
  EXPECT_EQ(gpu.ecc_corrected_errors(), 3);
  EXPECT_EQ(gpu.ecc_uncorrected_errors(), 1);
  EXPECT_TRUE(gpu.has_mig_enabled());
  EXPECT_FALSE(gpu.mig_enabled());
  ASSERT_EQ(gpu.processes_size(), 2);
  EXPECT_EQ(gpu.processes(0).pid(), 4242);
  EXPECT_EQ(gpu.processes(0).memory_used_bytes(), 1048576);
  EXPECT_EQ(gpu.processes(1).pid(), 77);
  EXPECT_FALSE(gpu.processes(1).has_memory_used_bytes());
}

TEST_F(NvmlTest, TensorActivityNeedsTwoReadings) {
  gpus_.Set(kTwoGpus);
  auto nvml = Open();
  EXPECT_FALSE(nvml->Read(0).gpu().has_tensor_active());
  EXPECT_DOUBLE_EQ(nvml->Read(0).gpu().tensor_active(), 0.425);
  EXPECT_DOUBLE_EQ(nvml->Read(0).gpu().tensor_active(), 0.425);
  EXPECT_FALSE(nvml->Read(1).gpu().has_tensor_active());
  EXPECT_FALSE(nvml->Read(1).gpu().has_tensor_active());
}

// Every figure that `device` has, by reflection: none may appear as 0 because it is not known.
std::vector<std::string> FieldsSet(const google::protobuf::Message& message) {
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  std::vector<std::string> names;
  for (const auto* field : fields) names.push_back(field->name());
  return names;
}

TEST_F(NvmlTest, WhatAGpuDoesNotTellIsAbsent) {
  gpus_.Set(kTwoGpus);
  auto nvml = Open();
  const v1::Device device = nvml->Read(1);
  EXPECT_THAT(FieldsSet(device), ElementsAre("memory_total_bytes", "memory_used_bytes", "gpu"));
  EXPECT_THAT(FieldsSet(device.gpu()), ElementsAre("memory_free_bytes", "process_count"));
}

TEST_F(NvmlTest, AnOldLibraryTellsWhatItCan) {
  gpus_.Set(kTwoGpus);
  auto nvml = Open("fake_nvml_old");
  ASSERT_EQ(devices_.size(), 2u);
  EXPECT_EQ(devices_[0].gpu().cuda_driver_version(), "13.0");
  nvml->Read(0);
  const v1::Device device = nvml->Read(0);
  EXPECT_DOUBLE_EQ(device.utilization(), 0.75);
  // By the name that the function had.
  EXPECT_THAT(device.gpu().throttle_reasons(), ElementsAre("SW_POWER_CAP"));
  EXPECT_FALSE(device.gpu().has_energy_joules());
  EXPECT_FALSE(device.gpu().has_tensor_active());
  EXPECT_FALSE(device.gpu().has_process_count());
  EXPECT_FALSE(device.gpu().has_mig_enabled());
  EXPECT_EQ(nvml->WaitForXid(absl::Seconds(1)).status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(NvmlTest, ManyProcessesAreAllSeen) {
  std::string script = "gpu GPU-a\n";
  for (int i = 0; i < 300; ++i) absl::StrAppend(&script, "process ", 1000 + i, "\n");
  gpus_.Set(script);
  const v1::Device device = Open()->Read(0);
  EXPECT_EQ(device.gpu().process_count(), 300);
  EXPECT_EQ(device.gpu().processes(299).pid(), 1299);
}

TEST_F(NvmlTest, ALostGpuHasNoFiguresAndComesBack) {
  gpus_.Set(kTwoGpus);
  auto nvml = Open();
  nvml->Read(0);
  gpus_.Set(absl::StrCat("gpu GPU-aaaa\nfails 15\ngpu GPU-bbbb\nfails 999\n"));
  v1::Device device = nvml->Read(0);
  EXPECT_THAT(FieldsSet(device), ElementsAre("conditions"));
  EXPECT_EQ(device.conditions(0).kind(), v1::DeviceCondition::GPU_LOST);
  EXPECT_TRUE(device.conditions(0).blocks_jobs());
  EXPECT_THAT(device.conditions(0).message(), HasSubstr("GPU is lost (15)"));
  device = nvml->Read(1);
  EXPECT_EQ(device.conditions(0).kind(), v1::DeviceCondition::NO_ANSWER);
  EXPECT_THAT(device.conditions(0).message(), HasSubstr("(999)"));
  gpus_.Set(kTwoGpus);
  device = nvml->Read(0);
  EXPECT_THAT(device.conditions(), IsEmpty());
  EXPECT_FALSE(device.gpu().has_tensor_active()) << "a sample from before the loss does not count";
  // Its driver was loaded anew and its list of GPUs is shorter.
  gpus_.Set("driver 1\n");
  EXPECT_EQ(nvml->Read(0).conditions(0).kind(), v1::DeviceCondition::NO_ANSWER);
}

TEST_F(NvmlTest, XidsAreReportedOnceAndInOrder) {
  gpus_.Set(absl::StrCat(kTwoGpus, "xid 1 13\nxid 2 79\n"));
  auto nvml = Open();
  for (const uint32_t xid : {13u, 79u}) {
    const auto event = nvml->WaitForXid(absl::Seconds(10));
    ASSERT_TRUE(event.ok() && event->has_value()) << event.status();
    EXPECT_EQ((*event)->gpu, 1);
    EXPECT_EQ((*event)->xid, xid);
  }
  const auto none = nvml->WaitForXid(absl::Milliseconds(1));
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
}

TEST_F(NvmlTest, WithoutALibraryOrADriverThereAreNoGpus) {
  EXPECT_EQ(Nvml::Open("/no/such/libnvidia-ml.so.1").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(Nvml::Open("/no/such/lib.so").status().message()), HasSubstr("/no/such/lib.so"));
  gpus_.Set("init 9\n");
  const auto no_driver = Nvml::Open(FakeLibrary("fake_nvml"));
  EXPECT_EQ(no_driver.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(no_driver.status().message()), HasSubstr("nvmlInit_v2: Driver Not Loaded (9)"));
  // Some other library.
  EXPECT_EQ(Nvml::Open("libz.so.1").status().code(), absl::StatusCode::kUnavailable);
  gpus_.Set("driver 580\n");
  Open();
  EXPECT_THAT(devices_, IsEmpty());
  EXPECT_THAT(problems_, IsEmpty());
}

TEST_F(NvmlTest, AGpuThatTellsNoUuidIsLeftOut) {
  gpus_.Set("gpu GPU-a\nfails 15\ngpu GPU-b\n");
  auto nvml = Open();
  ASSERT_EQ(devices_.size(), 1u);
  EXPECT_EQ(devices_[0].id(), "GPU-b");
  EXPECT_THAT(problems_, ElementsAre(HasSubstr("GPU 0")));
  EXPECT_EQ(nvml->Read(0).conditions_size(), 0);
}

}  // namespace
}  // namespace ampd
