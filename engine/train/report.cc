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

Reporter::Reporter(const v1::ReportSpec& spec, std::string phase, int64_t total_steps, double learning_rate,
                   TrainerObserver* observer, Clock clock)
    : spec_(spec),
      phase_(std::move(phase)),
      total_steps_(total_steps),
      observer_(observer),
      clock_(std::move(clock)),
      last_report_(-std::numeric_limits<double>::infinity()),
      gradient_norm_(kNone),
      learning_rate_(learning_rate) {}

bool Reporter::Due(int64_t step) {
  if (spec_.has_every_steps()) return step % spec_.every_steps() == 0;
  return clock_() - last_report_ >= 1 / spec_.max_per_second();
}

absl::Status Reporter::AddStep(const StepRecord& record) {
  if (first_step_ == 0) first_step_ = record.step;
  last_ = record;
  if (std::isfinite(record.loss)) {
    loss_sum_ += record.loss;
    ++finite_losses_;
  }
  if (record.applied) {
    gradient_norm_ = record.gradient_norm;
    learning_rate_ = record.learning_rate;
  }
  samples_ += record.samples;
  seconds_ += record.seconds;
  wait_seconds_ += record.wait_seconds;
  return Due(record.step) ? Flush() : absl::OkStatus();
}

absl::Status Reporter::Flush() {
  if (first_step_ == 0) return absl::OkStatus();
  v1::JobEvent event;
  v1::StepReport* report = event.mutable_step();
  report->set_first_step(first_step_);
  report->set_last_step(last_.step);
  report->set_samples_per_second(seconds_ > 0 ? static_cast<double>(samples_) / seconds_ : 0);
  report->set_input_wait_seconds(wait_seconds_);
  report->set_total_steps(total_steps_);
  report->set_epoch(last_.epoch);
  v1::PhaseReport* phase = report->add_phases();
  phase->set_name(phase_);
  phase->set_loss(finite_losses_ > 0 ? loss_sum_ / static_cast<double>(finite_losses_) : kNone);
  phase->set_loss_scale(last_.loss_scale);
  phase->set_learning_rate(learning_rate_);
  phase->set_gradient_norm(gradient_norm_);
  phase->set_steps_applied(last_.steps_applied);
  phase->set_steps_skipped(last_.steps_skipped);
  first_step_ = finite_losses_ = samples_ = 0;
  loss_sum_ = seconds_ = wait_seconds_ = 0;
  gradient_norm_ = kNone;
  last_report_ = clock_();
  return Emit(std::move(event));
}

absl::Status Reporter::Emit(v1::JobEvent event) {
  AMPD_RETURN_IF_ERROR(Flush());
  *event.mutable_time() = google::protobuf::util::TimeUtil::GetCurrentTime();
  return observer_->OnEvent(std::move(event));
}

absl::Status Reporter::Log(v1::LogLine::Severity severity, const std::string& text) {
  v1::JobEvent event;
  event.mutable_log()->set_severity(severity);
  event.mutable_log()->set_text(text);
  return Emit(std::move(event));
}

}  // namespace ampd::train
