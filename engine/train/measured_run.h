// A job's first steps in one mode and batch size, taken to be measured: a model of its own, with the first weights
// of the job, that nothing is kept of.
#ifndef AMPD_ENGINE_TRAIN_MEASURED_RUN_H_
#define AMPD_ENGINE_TRAIN_MEASURED_RUN_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "engine/train/captured_steps.h"
#include "engine/train/planned_model.h"
#include "engine/train/report.h"
#include "engine/train/step_runner.h"
#include "engine/train/train_state.h"
#include "engine/train/trainer.h"
#include "engine/train/training_data.h"

namespace ampd::train {

// `spec` in `mode`, at batches of `batch_size` cut as the job's are. Layers that a rule holds in the job's own mode
// follow it; rules that ask for something that the mode does not allow fall away. Loss scaling is as the job asks where
// it says a kind, or the mode is its own; else as the mode brings it. Without evaluation. Errors are ResolveJobSpec's.
absl::StatusOr<ResolvedJobSpec> InMode(const ResolvedJobSpec& spec, v1::PrecisionSpec::Mode mode, int64_t batch_size);

// Processor time of this process so far, seconds.
double ProcessorSeconds();

struct MeasuredStep {
  // Of the step; on a host that takes the steps without the wait for its batch.
  double seconds = 0;
  // Processor time of the whole process meanwhile, and the time it was taken in, waiting included.
  double cpu_seconds = 0;
  double wall_seconds = 0;
  // Of the phase that runs the most often, the first of those; NaN where it was not due.
  double loss = std::numeric_limits<double>::quiet_NaN();
  // Of every phase that was due.
  bool applied = true;
};

// Thread-compatible.
class MeasuredRun {
 public:
  // Plans, and holds no tensors. `spec` is from InMode(); `data`, which outlives the run, may be of another batch size.
  // Errors as PlanModel's and, for no device, MakeBackend's.
  static absl::StatusOr<std::unique_ptr<MeasuredRun>> Plan(const ResolvedJobSpec& spec, const TrainingData* data,
                                                           const TrainerOptions& options);
  MeasuredRun(const MeasuredRun&) = delete;
  MeasuredRun& operator=(const MeasuredRun&) = delete;

  // What the plan takes of the device; with batches, where they lie in the same memory, and with the training samples
  // that data.device_cache asks for there. Bytes.
  int64_t device_bytes() const;
  int64_t bytes() const;
  const PlannedModel& plan() const { return *plan_; }
  const v1::TrainSpec& train() const { return spec_.proto().train(); }

  // Allocates, sets the first weights and opens the loader. RESOURCE_EXHAUSTED where less memory is left than it
  // takes: the process would not survive to tell.
  absl::Status Load();
  // Gives all memory back; the steps stay.
  void Unload();

  // Takes the next steps: one where the host takes them, else as many as make a time that says something, at most
  // `most`. Each is added to steps(). A phase whose loss scale reached its floor is an error marked DIVERGED.
  absl::Status Advance(int64_t most);
  const std::vector<MeasuredStep>& steps() const { return steps_; }
  int64_t applied() const { return applied_; }

  // Share of the gradients' values that fp16 flushes to zero at the scale as it is, on the next batch. nullopt where
  // all are zero.
  absl::StatusOr<absl::optional<double>> UnderflowShare();

 private:
  MeasuredRun(ResolvedJobSpec spec, const TrainingData* data, const TrainerOptions& options);
  absl::StatusOr<std::unique_ptr<runtime::Backend>> NewBackend() const;
  int64_t batch_bytes() const;
  absl::StatusOr<data::Batch*> TakeStep(int64_t ahead);
  absl::Status Look(const data::Batch& batch, MeasuredStep* step);

  const ResolvedJobSpec spec_;
  const TrainingData* data_;
  const TrainerOptions options_;
  const Clock clock_;
  int64_t total_steps_ = 1;
  std::unique_ptr<PlannedModel> plan_;
  // Whose loss is told.
  size_t told_phase_ = 0;
  std::unique_ptr<LoadedModel> model_;
  std::vector<std::unique_ptr<StepRunner>> runners_;
  std::unique_ptr<CapturedSteps> captured_;
  std::unique_ptr<data::Loader> loader_;
  std::vector<PhaseState> phases_;
  std::vector<PhaseResult> results_;
  int64_t step_ = 0;
  int64_t applied_ = 0;
  std::vector<MeasuredStep> steps_;
};

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_MEASURED_RUN_H_
