#include "proto/spec/device_models.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace ampd {
namespace {

using v1::DeviceModel;
using v1::PrecisionSpec;

struct Row {
  const char* name;
  std::vector<std::string> words;
  int major, minor;
  // Tera-operations a second; 0: no unit for the mode.
  double fp32, tf32, fp16, bf16, fp8;
  // 1e9 bytes a second.
  double bandwidth;
  // MiB.
  int memory;
  double usd;
  // Multiprocessors, and MiB of second-level cache.
  int multiprocessors, l2;
};

// NVIDIA's data sheets: H200 (2024), H100 (2023), A100 (2021), A30, A40 and A10 (2021), L40S and L4 (2023), V100
// (2020), T4 (2019), P100 (2016); HGX B200 (a GPU at 1,000 W).
//
// P100 halves its fp16 operands in vector units, 21.2 TFLOP/s: it has no tensor cores, and jobs in FP16 need them.
//
// Memory is the total that drivers report (nvidia-smi, NVML), with ECC: a device's own figure, so that a plan for a
// kind and one for a device agree. H100-SXM and H200: tests/bench/results, 2026-11-26 and 27 (driver 580). A100, A10,
// L40S, L4 and T4: modal-labs/modal-client#2797; B200: NVIDIA/TensorRT-LLM#10278; H100-NVL: NVIDIA/gpu-admin-tools#4;
// A40: chatdoc-com/OCRFlux#64; V100: 1CatAI/1Cat-vLLM#85 (16 GB), akash-network/provider-configs#90 (32 GB); H100-PCIe,
// H200-NVL, A30 and P100: tables of nvidia-smi in several public repositories. Old drivers tell somewhat less (440 of a
// V100 16,160 MiB).
//
// Prices, US dollars a GPU and hour, found on 2026-11-22: H100, H200 and B200 as rented singly (RunPod's list of March
// 2026), A100 as an eighth of a p4d.24xlarge (AWS, on demand, June 2026). On 2026-11-28, of the smallest machine on
// demand, in several public price tables: A100-SXM-80GB an eighth of a p4de.24xlarge, V100-SXM2 a p3.2xlarge, L40S a
// g6e.xlarge, L4 a g6.xlarge, T4 a g4dn.xlarge (AWS), A100-PCIe-80GB an NC24ads_A100_v4, V100-PCIe an NC6s_v3 (Azure),
// P100 the GPU alone (Google Cloud).
//
// Multiprocessors and caches: the data sheets' and the architectures' white papers.
const std::vector<Row>& Rows() {
  static const auto* const rows = new std::vector<Row>{
      {"B200", {"B200"}, 10, 0, 80, 1100, 2250, 2250, 4500, 8000, 183359, 5.98, 148, 126},
      {"H200-NVL", {"H200", "NVL"}, 9, 0, 60, 417.5, 835.5, 835.5, 1671, 4800, 143771, 0, 132, 60},
      {"H200", {"H200"}, 9, 0, 67, 494.5, 989.5, 989.5, 1979, 4800, 143771, 3.59, 132, 60},
      {"H100-NVL", {"H100", "NVL"}, 9, 0, 60, 417.5, 835.5, 835.5, 1671, 3900, 95830, 0, 132, 50},
      {"H100-PCIe", {"H100", "PCIe"}, 9, 0, 51, 378, 756, 756, 1513, 2000, 81559, 0, 114, 50},
      {"H100-SXM", {"H100", "HBM3"}, 9, 0, 67, 494.5, 989.5, 989.5, 1979, 3350, 81559, 2.69, 132, 50},
      {"A100-PCIe-40GB", {"A100", "PCIE", "40GB"}, 8, 0, 19.5, 156, 312, 312, 0, 1555, 40960, 0, 108, 40},
      {"A100-PCIe-80GB", {"A100", "PCIe", "80GB"}, 8, 0, 19.5, 156, 312, 312, 0, 1935, 81920, 3.67, 108, 40},
      {"A100-SXM-80GB", {"A100", "80GB"}, 8, 0, 19.5, 156, 312, 312, 0, 2039, 81920, 5.12, 108, 40},
      {"A100-SXM-40GB", {"A100"}, 8, 0, 19.5, 156, 312, 312, 0, 1555, 40960, 4.10, 108, 40},
      {"A30", {"A30"}, 8, 0, 10.3, 82, 165, 165, 0, 933, 24576, 0, 56, 24},
      {"A40", {"A40"}, 8, 6, 37.4, 74.8, 149.7, 149.7, 0, 696, 46068, 0, 84, 6},
      {"A10", {"A10"}, 8, 6, 31.2, 62.5, 125, 125, 0, 600, 23028, 0, 72, 6},
      {"L40S", {"L40S"}, 8, 9, 91.6, 183, 362, 362, 733, 864, 46068, 1.86, 142, 96},
      {"L4", {"L4"}, 8, 9, 30.3, 60, 121, 121, 242.5, 300, 23034, 0.80, 58, 48},
      {"V100-SXM2-32GB", {"V100", "SXM2", "32GB"}, 7, 0, 15.7, 0, 125, 0, 0, 900, 32768, 0, 80, 6},
      {"V100-SXM2", {"V100", "SXM2"}, 7, 0, 15.7, 0, 125, 0, 0, 900, 16384, 3.06, 80, 6},
      {"V100-PCIe", {"V100", "PCIE"}, 7, 0, 14, 0, 112, 0, 0, 900, 16384, 3.06, 80, 6},
      {"P100", {"P100", "SXM2"}, 6, 0, 10.6, 0, 0, 0, 0, 732, 16384, 1.46, 56, 4},
      {"P100-PCIe", {"P100", "PCIE"}, 6, 0, 9.3, 0, 0, 0, 0, 732, 16384, 1.46, 56, 4},
      {"T4", {"T4"}, 7, 5, 8.1, 0, 65, 0, 0, 320, 15360, 0.53, 40, 4},
  };
  return *rows;
}

DeviceModel FromRow(const Row& row) {
  DeviceModel model;
  model.set_name(row.name);
  model.mutable_words()->Assign(row.words.begin(), row.words.end());
  model.set_kind(v1::Device::CUDA);
  model.set_compute_capability_major(row.major);
  model.set_compute_capability_minor(row.minor);
  model.set_fp32_flops(row.fp32 * 1e12);
  model.set_tf32_flops(row.tf32 * 1e12);
  model.set_fp16_flops(row.fp16 * 1e12);
  model.set_bf16_flops(row.bf16 * 1e12);
  model.set_fp8_flops(row.fp8 * 1e12);
  model.set_memory_bandwidth(row.bandwidth * 1e9);
  model.set_memory_bytes(int64_t{row.memory} << 20);
  model.set_usd_per_hour(row.usd);
  model.set_tensor_cores(row.major >= 7);
  model.set_multiprocessors(row.multiprocessors);
  model.set_l2_bytes(int64_t{row.l2} << 20);
  return model;
}

bool SameName(const DeviceModel& a, absl::string_view name) { return absl::EqualsIgnoreCase(a.name(), name); }

// "" when all of its numbers can be computed with.
std::string WrongNumber(const DeviceModel& model) {
  const auto* descriptor = DeviceModel::descriptor();
  const auto* reflection = model.GetReflection();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto* field = descriptor->field(i);
    if (field->is_repeated()) continue;
    double value = 0;
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE) {
      value = reflection->GetDouble(model, field);
    } else if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_INT64) {
      value = static_cast<double>(reflection->GetInt64(model, field));
    } else if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_INT32) {
      value = reflection->GetInt32(model, field);
    }
    if (!std::isfinite(value) || value < 0) return absl::StrCat(field->name(), ": must be 0 or more, is ", value);
  }
  return "";
}

std::string WhatIsWrong(const DeviceModel& model, bool known, std::set<std::string>* names) {
  if (model.name().empty()) return "name: must be given";
  if (!names->insert(absl::AsciiStrToLower(model.name())).second) {
    return absl::StrCat("name: ", model.name(), " stands twice");
  }
  const bool of_a_kind = model.kind() == v1::Device::CPU || model.kind() == v1::Device::CUDA;
  if (!known && !of_a_kind) return "kind: must be CPU or CUDA for a kind that is not built in";
  return WrongNumber(model);
}

}  // namespace

ComputeCapability LowestCapability(PrecisionSpec::Mode mode) {
  switch (mode) {
    case PrecisionSpec::FP16:
      return {7, 0};
    case PrecisionSpec::BF16:
    case PrecisionSpec::TF32:
      return {8, 0};
    case PrecisionSpec::FP8:
      return {8, 9};
    default:
      return {0, 0};
  }
}

const std::vector<DeviceModel>& BuiltInDeviceModels() {
  static const auto* const models = [] {
    auto* all = new std::vector<DeviceModel>;
    for (const Row& row : Rows()) all->push_back(FromRow(row));
    DeviceModel cpu;
    cpu.set_name("CPU");
    cpu.set_kind(v1::Device::CPU);
    all->push_back(std::move(cpu));
    return all;
  }();
  return *models;
}

absl::StatusOr<std::vector<DeviceModel>> DeviceModelsWith(
    const google::protobuf::RepeatedPtrField<DeviceModel>& configured) {
  std::vector<DeviceModel> built_in = BuiltInDeviceModels(), own;
  std::vector<std::string> wrong;
  std::set<std::string> names;
  for (int i = 0; i < configured.size(); ++i) {
    const DeviceModel& model = configured[i];
    const auto known =
        std::find_if(built_in.begin(), built_in.end(), [&](const auto& m) { return SameName(m, model.name()); });
    const std::string what = WhatIsWrong(model, known != built_in.end(), &names);
    if (!what.empty()) wrong.push_back(absl::StrCat("device_models[", i, "].", what));
    if (known == built_in.end()) {
      own.push_back(model);
      continue;
    }
    // A merge appends to lists.
    if (!model.words().empty()) known->clear_words();
    known->MergeFrom(model);
  }
  if (!wrong.empty()) return absl::InvalidArgumentError(absl::StrJoin(wrong, "\n"));
  own.insert(own.end(), built_in.begin(), built_in.end());
  return own;
}

const DeviceModel* FindDeviceModel(const std::vector<DeviceModel>& models, absl::string_view name) {
  const auto found = std::find_if(models.begin(), models.end(), [&](const auto& m) { return SameName(m, name); });
  return found == models.end() ? nullptr : &*found;
}

const DeviceModel* ModelOfDevice(const std::vector<DeviceModel>& models, const v1::Device& device) {
  const std::vector<std::string> name = absl::StrSplit(device.name(), absl::ByAnyChar(" -"));
  const auto stands = [&](const std::string& word) { return std::find(name.begin(), name.end(), word) != name.end(); };
  for (const DeviceModel& model : models) {
    if (model.kind() != device.kind()) continue;
    if (model.words().empty() && model.kind() == v1::Device::CUDA) continue;
    if (std::all_of(model.words().begin(), model.words().end(), stands)) return &model;
  }
  return nullptr;
}

double PeakFlops(const DeviceModel& model, PrecisionSpec::Mode mode) {
  switch (mode) {
    case PrecisionSpec::FP32:
      return model.fp32_flops();
    case PrecisionSpec::TF32:
      return model.tf32_flops();
    case PrecisionSpec::FP16:
      return model.fp16_flops();
    case PrecisionSpec::BF16:
      return model.bf16_flops();
    case PrecisionSpec::FP8:
      return model.fp8_flops();
    default:
      return 0;
  }
}

std::string ModeRefusal(const DeviceModel& model, PrecisionSpec::Mode mode) {
  if (model.kind() != v1::Device::CUDA || mode == PrecisionSpec::FP32) return "";
  const std::string name = PrecisionSpec::Mode_Name(mode);
  const ComputeCapability has{model.compute_capability_major(), model.compute_capability_minor()};
  if (has == ComputeCapability{}) {
    return PeakFlops(model, mode) > 0 ? "" : absl::StrCat(model.name(), " has no peak for ", name);
  }
  const ComputeCapability lowest = LowestCapability(mode);
  if (has >= lowest) return "";
  return absl::StrCat(name, " needs compute capability ", lowest.major, ".", lowest.minor, ", ", model.name(), " has ",
                      has.major, ".", has.minor, has.major < 7 ? " and no tensor cores" : "");
}

}  // namespace ampd
