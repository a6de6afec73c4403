// What a measurement's numbers come to.
#ifndef AMPD_ENGINE_TRAIN_BENCH_CELL_H_
#define AMPD_ENGINE_TRAIN_BENCH_CELL_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "ampd/v1/device.pb.h"
#include "ampd/v1/event.pb.h"

namespace ampd::train {

// The value below which a share `q` (0 to 1) of `values` lies, between two of them by interpolation; 0 for none.
double Quantile(std::vector<double> values, double q);

// Median and percentiles of `seconds`, and what follows from them: samples a second, FLOP/s (`flops` a step; nullopt:
// not known), utilisation, and at the device's price dollars. A sweep's batch size is 0.
void FillTimes(const std::vector<double>& seconds, absl::optional<double> flops,
               const absl::optional<v1::DeviceModel>& device, v1::BenchCell* cell);

// speed_up and loss_gap of every cell that has figures, by those of the first, which is FP32's; nothing where it has
// none.
void FillRelations(std::vector<v1::BenchCell>* cells);

// FP32, then `asked` in their order without it; with none asked all that `device` has units for, and without a known
// device all.
std::vector<v1::PrecisionSpec::Mode> ModesToMeasure(const google::protobuf::RepeatedField<int>& asked,
                                                    const absl::optional<v1::DeviceModel>& device,
                                                    absl::Span<const v1::PrecisionSpec::Mode> all);

// Whether `status` says that a cell has no figures, rather than that the job cannot go on: out of memory, a mode or
// batch that is not possible, or diverged.
bool IsOfTheCell(const absl::Status& status);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_BENCH_CELL_H_
