// The trainer itself; engine/train/trainer.h is its contract.
#ifndef AMPD_ENGINE_TRAIN_TRAINER_IMPL_H_
#define AMPD_ENGINE_TRAIN_TRAINER_IMPL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/train/artifacts.h"
#include "engine/train/captured_steps.h"
#include "engine/train/checkpoint.h"
#include "engine/train/gradient_diagnostics.h"
#include "engine/train/planned_model.h"
#include "engine/train/replicas.h"
#include "engine/train/report.h"
#include "engine/train/samples.h"
#include "engine/train/step_profiler.h"
#include "engine/train/step_runner.h"
#include "engine/train/train_state.h"
#include "engine/train/trainer.h"
#include "engine/train/training_data.h"

namespace ampd::train {

// The profile that was asked for and is not told of yet. Thread-safe.
class AskedProfile {
 public:
  // Without effect where there is one.
  void Ask(ProfileRequest request) {
    const MutexLock lock(&mutex_);
    if (request_.steps == 0) request_ = request;
  }
  // Of 0 steps: none.
  ProfileRequest Get() const {
    const MutexLock lock(&mutex_);
    return request_;
  }
  void Clear() {
    const MutexLock lock(&mutex_);
    request_ = {};
  }

 private:
  mutable Mutex mutex_;
  ProfileRequest request_ ABSL_GUARDED_BY(mutex_);
};

class TrainerImpl : public Trainer {
 public:
  TrainerImpl(const ResolvedJobSpec& spec, const TrainerOptions& options, TrainerObserver* observer);

  // Called once, before anything else.
  absl::Status Open();

  absl::StatusOr<Outcome> Run() override;
  std::string end_reason() const override;
  void Request(Command command) override;
  void Profile(ProfileRequest request) override { asked_profile_.Ask(request); }
  absl::Status DropHeldCheckpoint() override;
  absl::Status LeaveCheckpoint() override;
  int64_t step() const override { return step_.load(std::memory_order_relaxed); }
  int64_t evaluated_samples() const override { return evaluated_samples_.load(std::memory_order_relaxed); }

 private:
  const v1::JobSpec& job() const { return spec_.proto(); }
  int64_t EpochsCompleted() const { return state_.step / batches_per_epoch_; }

  // What the training runs on; at least one.
  std::vector<std::string> Devices() const;
  // Of the device of replica `rank`, and what threads each has.
  absl::StatusOr<std::unique_ptr<runtime::Backend>> NewBackend(size_t rank = 0) const;
  int ThreadsPerReplica() const;
  absl::Status Restore();
  // Phases as the reporter starts with them.
  std::vector<PhaseStart> PhaseStarts() const;
  // Makes model and runners for the modes that `checkpoint` was in and takes over what it holds; nullopt: the initial
  // weights, or what start_from.continue_training has the job begin with.
  absl::Status StartFrom(absl::optional<LoadedCheckpoint> checkpoint);
  // Plan, memory and runners, with the phases in BF16 that fell back. Whatever was there is gone.
  absl::Status OpenModel(const std::vector<bool>& fell_back);
  absl::Status OpenReplicas(const std::vector<bool>& fell_back);
  absl::Status TakeOver(LoadedCheckpoint checkpoint);
  absl::Status Announce();
  // Which weights, or training, of elsewhere it starts from, in words.
  std::string StartText() const;
  // Where it resumes, in words; `rewound` where that is behind what was reported.
  absl::Status AnnounceStart(const std::string& resumed);
  absl::StatusOr<Outcome> Loop();
  absl::StatusOr<optim::ScalerDecision> Step();
  // Takes the next step, by the device or by the host; the batch goes back to the loader.
  absl::StatusOr<data::Batch*> TakeStep();
  // The host's step of one phase, on every device.
  absl::StatusOr<StepResult> RunPhase(const data::Batch& batch, size_t phase);
  // Runs the phases that are due.
  absl::Status RunPhases(const data::Batch& batch);
  bool DiagnosticsDue(int64_t step) const;
  // Steps up to the next at whose end the model must be as it is then, or before which it must be looked at.
  int64_t StepsAhead() const;
  // Makes the loader that the steps from state_.step on are read from.
  absl::Status OpenLoader();
  absl::Status ReportStep(const data::Batch& batch, double seconds);
  // Whether the device takes the steps many in one kernel.
  bool TakesStepsWhole() const;
  // Before a step: begins a profile that was asked for, when it can be.
  void StartProfile();
  // After one that took `seconds`.
  absl::Status ProfileStep(const data::Batch& batch, double seconds);
  // Tells of the profile that is under way, if one is; before the plan that it is of goes.
  absl::Status FinishProfile();
  // What the readers found damaged, ahead of the steps as they read.
  absl::Status ReportCorrupt();
  absl::Status ReportSkip(const data::Batch& batch, const PhaseResult& result);
  // A gradient_diagnostics event of the phase about to take its step on `batch`, where one is due.
  absl::Status Diagnose(const data::Batch& batch, size_t phase);
  absl::Status ReportScale(size_t phase, double before, double after);
  // Whether the training goes on after a skip, and how.
  absl::StatusOr<optim::ScalerDecision> CheckSkips();
  absl::Status CheckWhatWasApplied();
  absl::Status Diverged(const PhaseResult& result) const;
  // The two ways on from the scale's floor.
  absl::Status FallBack(const PhaseResult& result);
  absl::Status RollBack(const PhaseResult& result);
  // The newest undamaged checkpoint, not newer than this step, whose last step was applied: one written amid skips
  // holds the weights that led to them. Where there is none such the oldest; nullopt where there is none at all.
  absl::StatusOr<absl::optional<LoadedCheckpoint>> LoadGoodCheckpoint();
  absl::Status EvaluateIfDue();
  // Whether the evaluations have the metrics that checkpoint.keep_best and train.early_stopping name.
  absl::Status CheckMetrics() const;
  // What becomes of the two by one more evaluation.
  void JudgeForKeepBest(const v1::Evaluation& evaluation);
  void JudgeForEarlyStopping(const v1::Evaluation& evaluation);
  bool StopsEarly() const;
  // No step is left to be taken.
  bool AtEnd() const { return state_.step == total_steps_ || StopsEarly(); }
  // report.samples, where they are due.
  absl::Status SampleIfDue();
  // Writes the artifact and tells of it; a file that cannot be written is a warning.
  absl::Status Keep(const Artifact& artifact);
  // Writes a checkpoint when `asked`, or the spec says so, or the job is at its end.
  absl::Status CheckpointIfDue(bool asked);
  absl::Status WriteCheckpoint();
  void HoldPublished();
  // Of the newest checkpoint, which holds what the training is now. nullopt: it is told of again.
  absl::Status EmitCheckpoint(std::optional<double> write_seconds);

  const ResolvedJobSpec spec_;
  const TrainerOptions options_;
  TrainerObserver* const observer_;
  const std::string spec_hash_;
  std::unique_ptr<TrainingData> data_;
  std::unique_ptr<PlannedModel> plan_;
  std::unique_ptr<LoadedModel> model_;
  // Null without report.samples.
  std::unique_ptr<Sampler> sampler_;
  // The model's likes on the other devices; null: there is one device.
  std::unique_ptr<Replicas> replicas_;
  std::unique_ptr<CheckpointStore> checkpoints_;
  const ArtifactStore artifacts_;
  // By phase.
  std::vector<std::unique_ptr<StepRunner>> runners_;
  std::vector<SkipLimits> skip_limits_;
  // Null where the host takes every step.
  std::unique_ptr<CapturedSteps> captured_;
  // Null without report.diagnostics_every_steps.
  std::unique_ptr<GradientDiagnostics> diagnostics_;
  std::unique_ptr<Reporter> reporter_;
  // Null but while steps are profiled.
  std::unique_ptr<StepProfiler> profiler_;
  // Of this attempt.
  double unprofiled_seconds_ = 0;
  int64_t unprofiled_steps_ = 0;
  // After the data it borrows, so that its thread ends first.
  std::unique_ptr<data::Loader> loader_;
  int64_t batches_per_epoch_ = 1;
  int64_t total_steps_ = 1;

  // Of the step being taken; kept to allocate nothing in a step.
  std::vector<PhaseResult> results_;
  std::vector<PhaseRecord> records_;
  std::vector<v1::JobEvent> diagnosed_;

  TrainState state_;
  // The newest checkpoint, and its step; -1: none.
  SavedCheckpoint saved_;
  int64_t saved_step_ = -1;
  // The attempt before left what it resumes from.
  bool was_left_ = false;
  // What it resumes from was lost and is the mirror's copy.
  bool from_mirror_ = false;
  double saved_at_ = 0;  // SteadySeconds()
  // There was an evaluation, whose checkpoint is still to be written.
  bool evaluation_due_to_save_ = false;
  std::vector<std::string> refused_checkpoints_;
  // Of model.onnx: what the file has of them no update made.
  std::set<std::string> infinite_in_file_;
  // Of weights that came from elsewhere.
  std::vector<std::string> start_notes_;
  // How the data differs from what the checkpoint tells of it.
  std::vector<std::string> data_notes_;

  std::atomic<int64_t> step_{0};
  std::atomic<int64_t> evaluated_samples_{0};
  std::atomic<bool> checkpoint_requested_{false};
  std::atomic<bool> stop_requested_{false};
  AskedProfile asked_profile_;
};

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_TRAINER_IMPL_H_
