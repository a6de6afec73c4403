// Takes steps on a device that decides them by itself (runtime::StepLoop), running ahead of what the trainer reports.
// The host steps in where the device stops: a skip outside calibration is replayed and decided by StepRunner.
#ifndef AMPD_ENGINE_TRAIN_CAPTURED_STEPS_H_
#define AMPD_ENGINE_TRAIN_CAPTURED_STEPS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/data/loader.h"
#include "engine/runtime/step_loop.h"
#include "engine/train/planned_model.h"
#include "engine/train/report.h"
#include "engine/train/step_runner.h"
#include "engine/train/train_state.h"
#include "engine/train/trainer.h"
#include "engine/train/training_data.h"

namespace ampd::train {

// What a phase's part of a step came to.
struct PhaseResult {
  size_t phase = 0;
  StepResult step;
};

// How a device is to take the steps of a training with this mode, other than kHost.
runtime::StepLaunch LaunchOf(StepMode mode);

// Thread-compatible.
class CapturedSteps {
 public:
  // Borrows all. nullptr where the backend leaves every step to the host. Errors are the backend's. Steps
  // are launched as `launch` says. The samples of `data`, which is read meanwhile, are kept on the device where they
  // can be; null: they are not. `clock`: seconds, by which steps are timed to tell how far the device may be ahead.
  static absl::StatusOr<std::unique_ptr<CapturedSteps>> Create(const PlannedModel& plan, LoadedModel* model,
                                                               const std::vector<std::unique_ptr<StepRunner>>* runners,
                                                               runtime::StepLaunch launch,
                                                               const TrainingData* data = nullptr,
                                                               Clock clock = SteadySeconds);

  runtime::StepLaunch launch() const { return loop_->launch(); }
  // OK: the training samples lie on the device. Else why they do not.
  const absl::Status& samples() const { return samples_; }
  // For the log: how the device computes the network.
  std::vector<std::string> notes() const { return loop_->notes(); }
  // What its loader is to read ahead.
  data::ReadAhead read_ahead() const;
  // Batches that it may hold at once; a loader needs as many buffers, and one that it fills.
  int64_t most_batches() const { return loop_->slots() + 1; }
  // No step is under way that has not been returned.
  bool idle() const { return queue_.empty(); }
  // Parameters, scalers or the step were changed by others; it must be idle.
  void Interrupt() { running_ = false; }

  // The batch of the next step, read, which Next() will take; it must be idle. Errors are the loader's and the
  // backend's.
  absl::StatusOr<data::Batch*> Peek(int64_t step, data::Loader* loader, const std::vector<PhaseState>& phases);

  // The next step: its batch, which need not have been read and which the caller gives back to `loader`; what each
  // phase that was due came to, and the scalers after it in `phases`. `step` is the step's number, from 0. Up to
  // `ahead` steps, this one counted, may be under way when it returns; those before the last DATA error are returned
  // first.
  absl::StatusOr<data::Batch*> Next(int64_t step, int64_t ahead, data::Loader* loader, std::vector<PhaseState>* phases,
                                    std::vector<PhaseResult>* results);

 private:
  struct Fed {
    data::Batch* batch;
    uint64_t phases;  // bits of those that are due
  };

  struct Window {
    int64_t steps;
    int64_t returned;
  };

  CapturedSteps(const PlannedModel& plan, const std::vector<std::unique_ptr<StepRunner>>* runners, Clock clock)
      : plan_(plan), runners_(runners), clock_(std::move(clock)) {}
  uint64_t PhasesDue(int64_t step) const;
  absl::Status Start(int64_t step, const std::vector<PhaseState>& phases);
  absl::Status RunAhead(int64_t step, int64_t ahead, data::Loader* loader);
  absl::Status Feed(const data::Batch& batch);
  absl::Status LaunchFed();
  absl::Status Finish(const Fed& fed, data::Loader* loader, std::vector<PhaseState>* phases,
                      std::vector<PhaseResult>* results);
  // The device stopped at `record`: it and the step's later phases are taken by the host.
  absl::Status TakeOver(const Fed& fed, const runtime::StepRecord& record, data::Loader* loader,
                        std::vector<PhaseState>* phases, std::vector<PhaseResult>* results);
  // The host's part of a step in which the device stopped: the phases from `first` on that are due.
  absl::Status TakePhases(const Fed& fed, size_t first, data::Loader* loader, std::vector<PhaseState>* phases,
                          std::vector<PhaseResult>* results);
  // Of a step that was returned.
  void Measure();
  int64_t InFlightTarget() const;

  const PlannedModel& plan_;
  const std::vector<std::unique_ptr<StepRunner>>* runners_;
  const Clock clock_;
  std::unique_ptr<runtime::StepLoop> loop_;
  absl::Status samples_;
  bool running_ = false;
  // Fed and not returned, in order; the last `unlaunched_` are not launched.
  std::deque<Fed> queue_;
  int64_t unlaunched_ = 0;
  // Launched and not all returned.
  std::deque<Window> windows_;
  // Of the loader, for a batch behind those in the queue.
  absl::Status data_error_;
  // When the last window before windows_ was through, or nothing was under way.
  double measured_from_ = 0;
  // Seconds a step takes, as seen of late; 0: not known.
  double step_seconds_ = 0;
  std::vector<runtime::FedInput> inputs_;
  std::vector<runtime::MicroBatchWeight> weights_;
  std::vector<std::vector<float>> shares_;
};

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_CAPTURED_STEPS_H_
