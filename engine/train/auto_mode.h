// Precision mode AUTO: several modes compared on the job's own device and data before its first step, and the training
// in the one that was chosen.
#ifndef AMPD_ENGINE_TRAIN_AUTO_MODE_H_
#define AMPD_ENGINE_TRAIN_AUTO_MODE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "ampd/v1/event.pb.h"
#include "engine/core/mutex.h"
#include "engine/train/report.h"
#include "engine/train/trainer.h"

namespace ampd::train {

// Compared with FP32 where the job does not say. FP8 changes more than how a product is rounded: it is not taken
// unasked.
inline constexpr v1::PrecisionSpec::Mode kAutoModes[] = {v1::PrecisionSpec::TF32, v1::PrecisionSpec::FP16,
                                                         v1::PrecisionSpec::BF16};

// How much faster than FP32 a mode must be, at the median and at the 10th percentile, to be taken in its place.
inline constexpr double kLeastSpeedUp = 1.02;

// The mode that `cells`, FP32's first, speak for: the fastest whose loss exceeds FP32's by at most the share
// `tolerance` of it, and FP32 where none is at least kLeastSpeedUp as fast. One without figures, or without a finite
// loss, is out. FP32's has figures.
v1::ModeChosen ChooseMode(const std::vector<v1::BenchCell>& cells, double tolerance);

// Where FP32, the first of `cells`, does not fit in memory: the fastest mode with a finite loss; nullopt where there is
// none.
absl::optional<v1::ModeChosen> ChooseWithoutFp32(const std::vector<v1::BenchCell>& cells);

// The decision of a job whose checkpoints are in `folder`: durable, and what SaveChosenMode() wrote last or nullopt.
// DATA_LOSS for a file that it did not write.
absl::Status SaveChosenMode(const std::string& folder, const v1::ModeChosen& chosen);
absl::StatusOr<absl::optional<v1::ModeChosen>> LoadChosenMode(const std::string& folder);

// The job in the mode that was chosen.
absl::StatusOr<ResolvedJobSpec> InChosenMode(const ResolvedJobSpec& spec, v1::PrecisionSpec::Mode mode);

// A mode_chosen event precedes everything else that an attempt tells; the first attempt that gets so far chooses, and
// later ones tell of it again.
class AutoTrainer : public Trainer {
 public:
  // As Trainer::Create's; `spec` is of mode AUTO.
  AutoTrainer(const ResolvedJobSpec& spec, const TrainerOptions& options, TrainerObserver* observer);

  absl::StatusOr<Outcome> Run() override;
  std::string end_reason() const override;
  void Request(Command command) override;
  void Profile(ProfileRequest request) override;
  absl::Status DropHeldCheckpoint() override;
  absl::Status LeaveCheckpoint() override;
  // Of the training; 0 while modes are compared.
  int64_t step() const override;
  int64_t evaluated_samples() const override;

 private:
  // nullopt after a stop.
  absl::StatusOr<absl::optional<v1::ModeChosen>> Choose();
  absl::StatusOr<std::vector<v1::BenchCell>> Compare();
  absl::StatusOr<Trainer*> OpenTrainer(v1::PrecisionSpec::Mode mode);

  const ResolvedJobSpec spec_;
  const TrainerOptions options_;
  TrainerObserver* const observer_;
  // Used by Run() alone.
  Reporter reporter_;
  std::atomic<bool> stop_requested_{false};
  mutable Mutex mutex_;
  std::unique_ptr<Trainer> trainer_ ABSL_GUARDED_BY(mutex_);
  // What was requested before there was one.
  std::vector<Command> pending_ ABSL_GUARDED_BY(mutex_);
  ProfileRequest pending_profile_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_AUTO_MODE_H_
