// Times the parts of a training's steps, for people who ask where the time goes.
#ifndef AMPD_ENGINE_TRAIN_STEP_PROFILER_H_
#define AMPD_ENGINE_TRAIN_STEP_PROFILER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "ampd/v1/event.pb.h"
#include "engine/runtime/lap_timer.h"
#include "engine/train/planned_model.h"

namespace ampd::train {

// What a step does besides the nodes of its plan, of each phase.
enum class StepPart { kZero, kInputs, kLoss, kReduce, kCheck, kUpdate, kCommit, kPublish };

// Thread-compatible. It looks on: what is profiled computes what it would have computed.
class StepProfiler {
 public:
  // Of the next `steps` >= 1 steps. `plan` outlives it, for its plans' nodes are known by their addresses. Not
  // `in_parts`: of steps that are one kernel, which nobody tells the parts of.
  static absl::StatusOr<std::unique_ptr<StepProfiler>> Create(const PlannedModel& plan, int64_t steps, bool in_parts);

  // A phase's step begins; what it launches next belongs to what After() names. Errors are the device's.
  absl::Status Start() { return timer_->Start(); }
  // `step` of phase `phase`, or this part of it, was launched since Start() or the After() before.
  absl::Status After(size_t phase, const runtime::PlanStep& step);
  absl::Status After(size_t phase, StepPart part);

  // Step `step`, from 1, is done, in `seconds`, of which it waited `wait_seconds` for its batch.
  absl::Status EndStep(int64_t step, double seconds, double wait_seconds);

  bool in_parts() const { return in_parts_; }
  // Steps that have ended.
  int64_t steps() const { return steps_; }
  bool done() const { return steps_ >= wanted_; }
  // At least one step has ended. `usual_seconds`: of a step that is not profiled, where that is known.
  v1::StepProfile Profile(absl::optional<double> usual_seconds) const;

 private:
  StepProfiler(const PlannedModel& plan, int64_t steps, bool in_parts, std::unique_ptr<runtime::LapTimer> timer);
  void AddFixedParts(const PlannedPhase& phase, bool named);
  void AddNodes(const PlannedPhase& phase, bool named);
  void FillParts(v1::StepProfile* profile) const;
  void FillKernels(v1::StepProfile* profile) const;

  const int64_t wanted_;
  const bool in_parts_;
  const std::unique_ptr<runtime::LapTimer> timer_;
  // The fixed parts of every phase, then the nodes; with their seconds apart.
  std::vector<v1::ProfilePart> parts_;
  std::vector<double> seconds_;
  // A node of several buckets' plans is one part.
  std::unordered_map<const runtime::PlanStep*, size_t> part_of_;
  int64_t steps_ = 0;
  int64_t last_step_ = 0;
  double step_seconds_ = 0;
  double wait_seconds_ = 0;
};

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_STEP_PROFILER_H_
