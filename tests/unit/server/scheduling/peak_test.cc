#include "server/scheduling/peak.h"

#include <gtest/gtest.h>

#include "proto/spec/device_models.h"

namespace ampd {
namespace {

using Precision = v1::PrecisionSpec;

double Tera(const std::string& name, Precision::Mode mode) {
  v1::Device device;
  device.set_kind(v1::Device::CUDA);
  device.set_name(name);
  return PeakFlops(BuiltInDeviceModels(), device, mode).value_or(0) / 1e12;
}

TEST(Peak, GoesByTheNameThatTheDriverTells) {
  EXPECT_EQ(Tera("NVIDIA H200", Precision::BF16), 989.5);
  EXPECT_EQ(Tera("NVIDIA H200 NVL", Precision::BF16), 835.5);
  EXPECT_EQ(Tera("NVIDIA H100 80GB HBM3", Precision::FP8), 1979);
  EXPECT_EQ(Tera("NVIDIA H100 PCIe", Precision::FP16), 756);
  EXPECT_EQ(Tera("NVIDIA A100-SXM4-80GB", Precision::TF32), 156);
  EXPECT_EQ(Tera("Tesla V100-SXM2-16GB", Precision::FP16), 125);
  EXPECT_EQ(Tera("Tesla T4", Precision::FP16), 65);
  EXPECT_EQ(Tera("NVIDIA L40S", Precision::FP32), 91.6);
}

TEST(Peak, WhatIsNotKnownIsAbsent) {
  // Words, not parts of words.
  EXPECT_EQ(Tera("NVIDIA A10G", Precision::FP16), 0);
  EXPECT_EQ(Tera("NVIDIA A1000", Precision::FP16), 0);
  EXPECT_EQ(Tera("NVIDIA H100", Precision::FP16), 0) << "which of them?";
  EXPECT_EQ(Tera("Tesla T4", Precision::BF16), 0);
  EXPECT_EQ(Tera("NVIDIA A100-SXM4-80GB", Precision::FP8), 0);
  EXPECT_EQ(Tera("", Precision::FP16), 0);
  v1::Device cpu;
  cpu.set_kind(v1::Device::CPU);
  cpu.set_name("Intel T4 A100");
  EXPECT_FALSE(PeakFlops(BuiltInDeviceModels(), cpu, Precision::FP32));
}

TEST(Peak, OwnFiguresAreUsed) {
  google::protobuf::RepeatedPtrField<v1::DeviceModel> own;
  own.Add()->set_name("cpu");
  own[0].set_bf16_flops(2e12);
  v1::Device cpu;
  cpu.set_kind(v1::Device::CPU);
  cpu.set_name("AMD EPYC");
  EXPECT_EQ(PeakFlops(*DeviceModelsWith(own), cpu, Precision::BF16), 2e12);
  EXPECT_FALSE(PeakFlops(*DeviceModelsWith(own), cpu, Precision::FP32));
}

}  // namespace
}  // namespace ampd
