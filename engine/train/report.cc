#include "engine/train/report.h"

#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/core/status.h"
#include "google/protobuf/util/time_util.h"

namespace ampd::train {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

}  // namespace

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Reporter::Reporter(const v1::ReportSpec& spec, const std::vector<PhaseStart>& phases, int64_t total_steps,
                   TrainerObserver* observer, Clock clock)
    : spec_(spec),
      total_steps_(total_steps),
      observer_(observer),
      clock_(std::move(clock)),
      last_report_(-std::numeric_limits<double>::infinity()) {
  for (const PhaseStart& phase : phases) {
    Range range{.name = phase.name, .gradient_norm = kNone, .learning_rate = phase.learning_rate};
    range.last.loss_scale = phase.loss_scale;
    range.last.steps_applied = phase.steps_applied;
    range.last.steps_skipped = phase.steps_skipped;
    phases_.push_back(std::move(range));
  }
}

bool Reporter::Due(int64_t step) {
  if (spec_.has_every_steps()) return step % spec_.every_steps() == 0;
  return clock_() - last_report_ >= 1 / spec_.max_per_second();
}

absl::Status Reporter::AddStep(const StepRecord& record) {
  if (first_step_ == 0) first_step_ = record.step;
  last_step_ = record.step;
  epoch_ = record.epoch;
  for (const PhaseRecord& phase : record.phases) {
    Range& range = phases_[phase.phase];
    range.last = phase;
    if (std::isfinite(phase.loss)) {
      range.loss_sum += phase.loss;
      ++range.finite_losses;
    }
    if (phase.applied) {
      range.gradient_norm = phase.gradient_norm;
      range.learning_rate = phase.learning_rate;
    }
  }
  samples_ += record.samples;
  ++steps_;
  seconds_ += record.seconds;
  wait_seconds_ += record.wait_seconds;
  return Due(record.step) ? Flush() : absl::OkStatus();
}

v1::PhaseReport Reporter::ReportOf(const Range& range) {
  v1::PhaseReport phase;
  phase.set_name(range.name);
  phase.set_loss(range.finite_losses > 0 ? range.loss_sum / static_cast<double>(range.finite_losses) : kNone);
  phase.set_loss_scale(range.last.loss_scale);
  phase.set_learning_rate(range.learning_rate);
  phase.set_gradient_norm(range.gradient_norm);
  phase.set_steps_applied(range.last.steps_applied);
  phase.set_steps_skipped(range.last.steps_skipped);
  return phase;
}

absl::Status Reporter::Flush() {
  if (first_step_ == 0) return absl::OkStatus();
  v1::JobEvent event;
  v1::StepReport* report = event.mutable_step();
  report->set_first_step(first_step_);
  report->set_last_step(last_step_);
  report->set_samples_per_second(seconds_ > 0 ? static_cast<double>(samples_) / seconds_ : 0);
  report->set_input_wait_seconds(wait_seconds_);
  if (steps_ > 0) report->set_step_seconds(seconds_ / static_cast<double>(steps_));
  report->set_total_steps(total_steps_);
  report->set_epoch(epoch_);
  for (Range& range : phases_) {
    *report->add_phases() = ReportOf(range);
    range.loss_sum = 0;
    range.finite_losses = 0;
    range.gradient_norm = kNone;
  }
  first_step_ = samples_ = steps_ = 0;
  seconds_ = wait_seconds_ = 0;
  last_report_ = clock_();
  return Emit(std::move(event));
}

google::protobuf::Timestamp EventTime() {
  // TimeUtil::GetCurrentTime() knows whole seconds only.
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return google::protobuf::util::TimeUtil::NanosecondsToTimestamp(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

absl::Status Reporter::Emit(v1::JobEvent event) {
  AMPD_RETURN_IF_ERROR(Flush());
  *event.mutable_time() = EventTime();
  return observer_->OnEvent(std::move(event));
}

absl::Status Reporter::Log(v1::LogLine::Severity severity, const std::string& text) {
  v1::JobEvent event;
  event.mutable_log()->set_severity(severity);
  event.mutable_log()->set_text(text);
  return Emit(std::move(event));
}

}  // namespace ampd::train
