#include "engine/train/bench_cell.h"

#include <algorithm>
#include <cmath>

#include "engine/train/failure.h"

namespace ampd::train {
namespace {

using v1::PrecisionSpec;

double PeakOf(const v1::DeviceModel& device, PrecisionSpec::Mode mode) {
  switch (mode) {
    case PrecisionSpec::FP32:
      return device.fp32_flops();
    case PrecisionSpec::TF32:
      return device.tf32_flops();
    case PrecisionSpec::FP16:
      return device.fp16_flops();
    case PrecisionSpec::BF16:
      return device.bf16_flops();
    case PrecisionSpec::FP8:
      return device.fp8_flops();
    default:
      return 0;
  }
}

}  // namespace

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

void FillTimes(const std::vector<double>& seconds, absl::optional<double> flops,
               const absl::optional<v1::DeviceModel>& device, v1::BenchCell* cell) {
  const double median = Quantile(seconds, 0.5);
  cell->set_steps(static_cast<int64_t>(seconds.size()));
  cell->set_step_seconds(median);
  cell->set_step_seconds_p10(Quantile(seconds, 0.1));
  cell->set_step_seconds_p90(Quantile(seconds, 0.9));
  if (median <= 0) return;
  cell->set_samples_per_second(static_cast<double>(cell->batch_size()) / median);
  if (flops.has_value()) cell->set_flops_per_second(*flops / median);
  if (!device.has_value()) return;
  const double peak = PeakOf(*device, cell->mode());
  if (flops.has_value() && peak > 0) cell->set_model_flops_utilization(*flops / median / peak);
  if (device->usd_per_hour() <= 0) return;
  const double usd_per_million = device->usd_per_hour() / 3600 * median * 1e6;
  cell->set_usd_per_million_steps(usd_per_million);
  if (cell->batch_size() > 0)
    cell->set_usd_per_million_samples(usd_per_million / static_cast<double>(cell->batch_size()));
}

void FillRelations(std::vector<v1::BenchCell>* cells) {
  if (cells->empty() || cells->front().has_failure()) return;
  const double seconds = cells->front().step_seconds();
  const absl::optional<double> loss =
      cells->front().has_loss() ? absl::optional<double>(cells->front().loss()) : absl::nullopt;
  for (v1::BenchCell& cell : *cells) {
    if (cell.has_failure()) continue;
    if (cell.step_seconds() > 0 && seconds > 0) cell.set_speed_up(seconds / cell.step_seconds());
    if (loss.has_value() && cell.has_loss() && *loss != 0) cell.set_loss_gap((cell.loss() - *loss) / std::fabs(*loss));
  }
}

std::vector<PrecisionSpec::Mode> ModesToMeasure(const google::protobuf::RepeatedField<int>& asked,
                                                const absl::optional<v1::DeviceModel>& device,
                                                absl::Span<const PrecisionSpec::Mode> all) {
  std::vector<PrecisionSpec::Mode> modes = {PrecisionSpec::FP32};
  for (const int value : asked) {
    const auto mode = static_cast<PrecisionSpec::Mode>(value);
    if (mode != PrecisionSpec::FP32) modes.push_back(mode);
  }
  if (!asked.empty()) return modes;
  for (const PrecisionSpec::Mode mode : all) {
    const bool lacks = device.has_value() && device->kind() == v1::Device::CUDA && PeakOf(*device, mode) <= 0;
    if (mode != PrecisionSpec::FP32 && !lacks) modes.push_back(mode);
  }
  return modes;
}

bool IsOfTheCell(const absl::Status& status) {
  switch (FailureOf(status).class_()) {
    case v1::Failure::OUT_OF_MEMORY:
    case v1::Failure::INVALID_SPEC:
    case v1::Failure::DIVERGED:
      return true;
    default:
      return false;
  }
}

}  // namespace ampd::train
