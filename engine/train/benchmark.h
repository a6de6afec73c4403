// A job that measures instead of training (JobSpec.bench): every mode at every batch size, or every size of a sweep.
#ifndef AMPD_ENGINE_TRAIN_BENCHMARK_H_
#define AMPD_ENGINE_TRAIN_BENCHMARK_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/train/report.h"
#include "engine/train/sweep.h"
#include "engine/train/trainer.h"
#include "engine/train/training_data.h"
#include "engine/train/turns.h"

namespace ampd::train {

// Measured against FP32 where the job does not say.
inline constexpr v1::PrecisionSpec::Mode kBenchModes[] = {v1::PrecisionSpec::TF32, v1::PrecisionSpec::FP16,
                                                          v1::PrecisionSpec::BF16, v1::PrecisionSpec::FP8};

// Tells of each size when all of its modes are measured: a bench_cell event each, FP32's first. It writes no
// checkpoint. An attempt goes on where the events of those before it end (TrainerOptions::last_reported_step); where
// that is amid the modes of one size it measures them all again, after `rewound`, so that speeds compare.
class Benchmark : public Trainer {
 public:
  // As Trainer::Create's; `spec` has `bench`.
  Benchmark(const ResolvedJobSpec& spec, const TrainerOptions& options, TrainerObserver* observer);

  absl::StatusOr<Outcome> Run() override;
  // There is nothing to keep of a checkpoint that is to go on.
  void Request(Command command) override;
  // Cells of several modes are measured in turns.
  void Profile(ProfileRequest) override {}
  // Attempted steps of all modes and sizes.
  int64_t step() const override { return step_.load(std::memory_order_relaxed); }

 private:
  const v1::BenchSpec& bench() const { return spec_.proto().bench(); }
  int64_t Sizes() const;
  absl::Status Open();
  // Where the first size to be measured stands among all.
  absl::StatusOr<int64_t> FirstSize();
  // CANCELLED after a stop.
  absl::Status Measure(int64_t size);
  absl::StatusOr<std::vector<v1::BenchCell>> CellsOf(int64_t size);
  TurnOptions Turns(const std::string& what);

  const ResolvedJobSpec spec_;
  const TrainerOptions options_;
  Reporter reporter_;
  std::vector<v1::PrecisionSpec::Mode> modes_;
  // Of a sweep.
  std::vector<SweepSize> sizes_;
  std::unique_ptr<TrainingData> data_;
  std::atomic<int64_t> step_{0};
  std::atomic<bool> stop_requested_{false};
};

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_BENCHMARK_H_
