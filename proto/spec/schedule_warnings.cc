#include "proto/spec/schedule_warnings.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ampd {
namespace {

// The schedules of one optimizer, by `path`.
class ScheduleCheck {
 public:
  ScheduleCheck(std::string path, int64_t steps, std::vector<std::string>* warnings)
      : path_(std::move(path)), steps_(steps), warnings_(warnings) {}

  void Check(const v1::ScheduleSpec& schedule) {
    switch (schedule.kind_case()) {
      case v1::ScheduleSpec::kConstant:
        return Warmup("constant", schedule.constant().warmup_steps());
      case v1::ScheduleSpec::kStep:
        Warmup("step", schedule.step().warmup_steps());
        return Falls("step.every_steps", schedule.step().every_steps());
      case v1::ScheduleSpec::kCosine:
        return Warmup("cosine", schedule.cosine().warmup_steps());
      case v1::ScheduleSpec::kLinear:
        return Warmup("linear", schedule.linear().warmup_steps());
      case v1::ScheduleSpec::kMultiStep:
        Warmup("multi_step", schedule.multi_step().warmup_steps());
        return Milestones(schedule.multi_step());
      case v1::ScheduleSpec::kCosineRestarts:
        Warmup("cosine_restarts", schedule.cosine_restarts().warmup_steps());
        return Period(schedule.cosine_restarts().period_steps());
      case v1::ScheduleSpec::kPolynomial:
        return Warmup("polynomial", schedule.polynomial().warmup_steps());
      case v1::ScheduleSpec::kInverseSquareRoot:
        return Warmup("inverse_square_root", schedule.inverse_square_root().warmup_steps());
      case v1::ScheduleSpec::kOneCycle:
      case v1::ScheduleSpec::KIND_NOT_SET:
        return;
    }
  }

 private:
  void Warmup(const char* kind, int64_t steps) {
    if (steps > steps_) {
      Add(absl::StrCat(kind, ".warmup_steps"), steps, "the learning rate never rises to what optimizer says");
    }
  }
  void Falls(const std::string& field, int64_t step) {
    if (step >= steps_) Add(field, step, "the learning rate does not fall there");
  }
  // One is told for all that follow.
  void Milestones(const v1::MultiStepSchedule& multi) {
    for (int i = 0; i < multi.milestones_size(); ++i) {
      if (multi.milestones(i) < steps_) continue;
      return Falls(absl::StrCat("multi_step.milestones[", i, "]"), multi.milestones(i));
    }
  }
  void Period(int64_t steps) {
    if (steps > steps_)
      Add("cosine_restarts.period_steps", steps, "the learning rate neither falls all the way nor restarts");
  }
  void Add(const std::string& field, int64_t value, const char* what) {
    warnings_->push_back(
        absl::StrCat(path_, ".", field, ": is ", value, ", and the job takes ", steps_, " steps: ", what));
  }

  const std::string path_;
  const int64_t steps_;
  std::vector<std::string>* const warnings_;
};

}  // namespace

std::vector<std::string> ScheduleWarnings(const v1::JobSpec& spec, int64_t steps) {
  std::vector<std::string> warnings;
  if (spec.has_bench()) return warnings;
  bool is_told = false;
  for (int i = 0; i < spec.phases_size(); ++i) {
    const v1::PhaseSpec& phase = spec.phases(i);
    const bool own = phase.has_optimizer();
    // Of phases that share it the first tells.
    if (!own && std::exchange(is_told, true)) continue;
    const int64_t own_steps = steps / std::max<int64_t>(1, phase.every());
    ScheduleCheck(own ? absl::StrCat("phases[", i, "].optimizer.schedule") : "optimizer.schedule", own_steps, &warnings)
        .Check(own ? phase.optimizer().schedule() : spec.optimizer().schedule());
  }
  return warnings;
}

}  // namespace ampd
