#include "server/scheduling/peak.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"

namespace ampd {
namespace {

struct Row {
  // All of these stand in the name, as words between blanks and hyphens; the first row that fits holds.
  std::vector<std::string> words;
  // Tera-operations a second; 0 where the GPU has no tensor cores for it.
  double fp32, tf32, fp16, bf16, fp8;
};

const std::vector<Row>& Table() {
  static const auto* const table = new std::vector<Row>{
      {{"H200", "NVL"}, 60, 417.5, 835.5, 835.5, 1671},
      {{"H200"}, 67, 494.5, 989.5, 989.5, 1979},
      {{"H100", "NVL"}, 60, 417.5, 835.5, 835.5, 1671},
      {{"H100", "PCIe"}, 51, 378, 756, 756, 1513},
      {{"H100", "HBM3"}, 67, 494.5, 989.5, 989.5, 1979},
      {{"A100"}, 19.5, 156, 312, 312, 0},
      {{"A30"}, 10.3, 82, 165, 165, 0},
      {{"A40"}, 37.4, 74.8, 149.7, 149.7, 0},
      {{"A10"}, 31.2, 62.5, 125, 125, 0},
      {{"L40S"}, 91.6, 183, 362, 362, 733},
      {{"L4"}, 30.3, 60, 121, 121, 242.5},
      {{"V100", "SXM2"}, 15.7, 0, 125, 0, 0},
      {{"V100", "PCIE"}, 14, 0, 112, 0, 0},
      {{"T4"}, 8.1, 0, 65, 0, 0},
  };
  return *table;
}

double TeraOps(const Row& row, v1::PrecisionSpec::Mode mode) {
  switch (mode) {
    case v1::PrecisionSpec::FP32:
      return row.fp32;
    case v1::PrecisionSpec::TF32:
      return row.tf32;
    case v1::PrecisionSpec::FP16:
      return row.fp16;
    case v1::PrecisionSpec::BF16:
      return row.bf16;
    case v1::PrecisionSpec::FP8:
      return row.fp8;
    default:
      return 0;
  }
}

}  // namespace

std::optional<double> PeakFlops(const v1::Device& device, v1::PrecisionSpec::Mode mode) {
  if (device.kind() != v1::Device::CUDA) return std::nullopt;
  const std::vector<std::string> name = absl::StrSplit(device.name(), absl::ByAnyChar(" -"));
  const auto stands = [&](const std::string& word) { return std::find(name.begin(), name.end(), word) != name.end(); };
  for (const Row& row : Table()) {
    if (!std::all_of(row.words.begin(), row.words.end(), stands)) continue;
    const double tera = TeraOps(row, mode);
    return tera > 0 ? std::optional(tera * 1e12) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace ampd
