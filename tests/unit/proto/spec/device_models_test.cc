#include "proto/spec/device_models.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "proto/spec/device_memory.h"

namespace ampd {
namespace {

using v1::PrecisionSpec;

std::string KindOf(const std::string& name, v1::Device::Kind kind = v1::Device::CUDA) {
  v1::Device device;
  device.set_kind(kind);
  device.set_name(name);
  const v1::DeviceModel* model = ModelOfDevice(BuiltInDeviceModels(), device);
  return model == nullptr ? "" : model->name();
}

const v1::DeviceModel& Model(const std::string& name) {
  const v1::DeviceModel* model = FindDeviceModel(BuiltInDeviceModels(), name);
  EXPECT_NE(model, nullptr) << name;
  return *model;
}

TEST(DeviceModels, DevicesAreKnownByTheWordsOfTheirNames) {
  EXPECT_EQ(KindOf("NVIDIA H100 80GB HBM3"), "H100-SXM");
  EXPECT_EQ(KindOf("NVIDIA H100 PCIe"), "H100-PCIe");
  EXPECT_EQ(KindOf("NVIDIA H200"), "H200");
  EXPECT_EQ(KindOf("NVIDIA B200"), "B200");
  EXPECT_EQ(KindOf("NVIDIA A100-SXM4-40GB"), "A100-SXM-40GB");
  EXPECT_EQ(KindOf("NVIDIA A100-SXM4-80GB"), "A100-SXM-80GB");
  EXPECT_EQ(KindOf("NVIDIA A100-PCIE-40GB"), "A100-PCIe-40GB");
  EXPECT_EQ(KindOf("NVIDIA A100 80GB PCIe"), "A100-PCIe-80GB");
  EXPECT_EQ(KindOf("Tesla V100-SXM2-16GB"), "V100-SXM2");
  EXPECT_EQ(KindOf("Tesla V100-SXM2-32GB"), "V100-SXM2-32GB");
  EXPECT_EQ(KindOf("Tesla P100-SXM2-16GB"), "P100");
  EXPECT_EQ(KindOf("Tesla T4"), "T4");
  EXPECT_EQ(KindOf("NVIDIA L4"), "L4");
  EXPECT_EQ(KindOf("NVIDIA L40"), "") << "words, not parts of them";
  EXPECT_EQ(KindOf("AMD EPYC", v1::Device::CPU), "CPU");
}

TEST(DeviceModels, EveryBuiltInKindIsWhole) {
  for (const v1::DeviceModel& model : BuiltInDeviceModels()) {
    if (model.kind() == v1::Device::CPU) continue;
    EXPECT_GT(model.fp32_flops(), 1e12) << model.name();
    EXPECT_GT(model.memory_bandwidth(), 1e11) << model.name();
    EXPECT_GE(model.memory_bytes(), int64_t{16'000'000'000}) << model.name();
    EXPECT_FALSE(model.words().empty()) << model.name();
    for (const auto mode : {PrecisionSpec::TF32, PrecisionSpec::FP16, PrecisionSpec::BF16, PrecisionSpec::FP8}) {
      // A peak where there is a unit, and none where there is none.
      EXPECT_EQ(PeakFlops(model, mode) > 0, ModeRefusal(model, mode).empty())
          << model.name() << " " << PrecisionSpec::Mode_Name(mode);
    }
  }
}

// As tests/bench/results/2026-11-26-gpu-overview.md and 2026-11-27-gpu-overview.md have them of the devices there.
TEST(DeviceModels, MemoryIsWhatDriversReport) {
  EXPECT_EQ(Model("H100-SXM").memory_bytes(), int64_t{81559} << 20);
  EXPECT_EQ(Model("H200").memory_bytes(), int64_t{143771} << 20);
  // Nominal gigabytes are 2^30 bytes, some of which ECC and firmware keep.
  EXPECT_EQ(Model("A100-SXM-80GB").memory_bytes(), int64_t{80} << 30);
  EXPECT_EQ(Model("V100-SXM2").memory_bytes(), int64_t{16} << 30);
  EXPECT_EQ(Model("T4").memory_bytes(), int64_t{15} << 30);
}

TEST(DeviceMemory, SizesAreToldToTheMebibyte) {
  EXPECT_EQ(Gibibytes(int64_t{10} << 30), "10 GiB");
  EXPECT_EQ(Gibibytes(int64_t{81559} << 20), "79.647 GiB");
  EXPECT_EQ(Gibibytes((int64_t{81559} << 20) + (1 << 20)), "79.648 GiB");
  EXPECT_EQ(Gibibytes((1 << 30) - 1), "1073741823 bytes");
}

TEST(DeviceModels, NoPeakIsInventedForACpu) {
  const v1::DeviceModel& cpu = Model("cpu");
  EXPECT_EQ(cpu.fp32_flops(), 0);
  EXPECT_EQ(cpu.memory_bandwidth(), 0);
  EXPECT_EQ(ModeRefusal(cpu, PrecisionSpec::FP8), "") << "it can do every mode";
}

TEST(DeviceModels, P100HasNoTensorCores) {
  const v1::DeviceModel& p100 = Model("P100");
  EXPECT_FALSE(p100.tensor_cores());
  EXPECT_EQ(p100.fp16_flops(), 0);
  EXPECT_EQ(ModeRefusal(p100, PrecisionSpec::FP16),
            "FP16 needs compute capability 7.0, P100 has 6.0 and no tensor cores");
}

TEST(DeviceModels, ConfiguredOnesKeepWhatTheyDoNotSay) {
  google::protobuf::RepeatedPtrField<v1::DeviceModel> own;
  own.Add()->set_name("h100-sxm");
  own[0].set_usd_per_hour(1.25);
  own.Add()->set_name("Mine");
  own[1].set_kind(v1::Device::CUDA);
  own[1].add_words("H100");
  const auto models = DeviceModelsWith(own);
  ASSERT_TRUE(models.ok()) << models.status();
  const v1::DeviceModel* h100 = FindDeviceModel(*models, "H100-SXM");
  EXPECT_EQ(h100->usd_per_hour(), 1.25);
  EXPECT_EQ(h100->bf16_flops(), 989.5e12);
  v1::Device device;
  device.set_kind(v1::Device::CUDA);
  device.set_name("NVIDIA H100 80GB HBM3");
  EXPECT_EQ(ModelOfDevice(*models, device)->name(), "Mine") << "own kinds come first";
  EXPECT_EQ(models->size(), BuiltInDeviceModels().size() + 1);
}

TEST(DeviceModels, WrongOnesAreRefusedByField) {
  google::protobuf::RepeatedPtrField<v1::DeviceModel> own;
  own.Add();
  own.Add()->set_name("T4");
  own[1].set_usd_per_hour(-1);
  own.Add()->set_name("t4");
  own.Add()->set_name("Abacus");
  own.Add()->set_name("L4");
  own[4].set_fp16_flops(NAN);
  EXPECT_EQ(DeviceModelsWith(own).status().message(),
            "device_models[0].name: must be given\n"
            "device_models[1].usd_per_hour: must be 0 or more, is -1\n"
            "device_models[2].name: t4 stands twice\n"
            "device_models[3].kind: must be CPU or CUDA for a kind that is not built in\n"
            "device_models[4].fp16_flops: must be 0 or more, is nan");
}

}  // namespace
}  // namespace ampd
