#include "client/analysis/events.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace ampd::client {
namespace {

using v1::Job;

bool Holds(Job::State state) {
  return state == Job::STARTING || state == Job::RUNNING || state == Job::PREEMPTING || state == Job::RECOVERING ||
         state == Job::CANCELLING;
}

// The events tell it in the daemon's words alone. One that it waited for (RECOVERING) is charged until it gives up.
bool WasFoundDead(const v1::StateChange& change) {
  if (change.from() == Job::RECOVERING) return false;
  return absl::StrContains(change.reason(), "the worker was lost while the daemon was away") ||
         absl::StartsWith(change.failure().message(), "worker and daemon lost each other");
}

// The newest step that an event tells of; 0 where it tells of none. Cells of a bench are none.
int64_t StepOf(const v1::JobEvent& event) {
  switch (event.payload_case()) {
    case v1::JobEvent::kStep:
      return event.step().last_step();
    case v1::JobEvent::kOverflowSkip:
      return event.overflow_skip().step();
    case v1::JobEvent::kLossScaleChange:
      return event.loss_scale_change().step();
    case v1::JobEvent::kPrecisionChange:
      return event.precision_change().step();
    case v1::JobEvent::kGradientDiagnostics:
      return event.gradient_diagnostics().step();
    case v1::JobEvent::kStepProfile:
      return event.step_profile().last_step();
    case v1::JobEvent::kArtifact:
      return event.artifact().step();
    case v1::JobEvent::kTextSample:
      return event.text_sample().step();
    case v1::JobEvent::kEvaluation:
      return event.evaluation().step();
    default:
      return 0;
  }
}

// Counts steps as the daemon charges them, but for skipped ones that are taken back: they are one waste, not two.
class StepCounter {
 public:
  void Add(const v1::JobEvent& event) {
    if (event.has_rewound()) GoBack(event.rewound().to_step());
    if (event.has_step()) AddReport(event.step());
    at_ = std::max(at_, StepOf(event));
  }

  StepCount Count() const {
    StepCount count = count_;
    count.attempted = at_ + count.rewound;
    double steps = 0;
    for (const Report& report : standing_) {
      steps += report.steps;
      count.skipped += report.skipped();
      count.skipped_seconds += report.skipped() * report.step_seconds;
    }
    count.useful = std::max(0.0, steps - count.skipped);
    if (count.reported > 0) count.step_seconds = count.total_seconds / static_cast<double>(count.reported);
    return count;
  }

 private:
  // What a report adds to those before it. An update is a phase's part of a step.
  struct Report {
    int64_t last_step;
    double steps, updates, skips;
    double step_seconds;

    double skipped() const { return updates > 0 ? steps * skips / updates : 0; }
    void Keep(double share) {
      for (double* part : {&steps, &updates, &skips}) *part *= share;
    }
  };

  void AddReport(const v1::StepReport& step) {
    const auto steps = static_cast<double>(std::max<int64_t>(0, step.last_step() - step.first_step() + 1));
    if (step.has_step_seconds()) step_seconds_ = step.step_seconds();
    Report report{step.last_step(), steps, 0, 0, step_seconds_};
    // The report has sums since the start of the job.
    for (const v1::PhaseReport& phase : step.phases()) {
      report.updates += static_cast<double>(phase.steps_applied()) + static_cast<double>(phase.steps_skipped());
      report.skips += static_cast<double>(phase.steps_skipped());
    }
    report.updates = std::max(0.0, report.updates - updates_);
    report.skips = std::clamp(report.skips - skips_, 0.0, report.updates);
    updates_ += report.updates;
    skips_ += report.skips;
    standing_.push_back(report);
    count_.reported += static_cast<int64_t>(steps);
    count_.input_wait_seconds += step.input_wait_seconds();
    if (step.has_step_seconds()) count_.total_seconds += step.step_seconds() * steps;
  }

  void GoBack(int64_t step) {
    const int64_t lost = std::max<int64_t>(0, at_ - step);
    count_.rewound += lost;
    at_ -= lost;
    // Of steps without reports it is not known how long they took: as long as the newest.
    auto unreported = static_cast<double>(lost);
    while (!standing_.empty() && standing_.back().last_step > step) {
      Report& last = standing_.back();
      const double kept = last.steps - static_cast<double>(last.last_step - step);
      const double gone = std::min(last.steps, last.steps - kept);
      count_.rewound_seconds += gone * last.step_seconds;
      unreported -= gone;
      if (kept <= 0) {
        standing_.pop_back();
        continue;
      }
      last.Keep(kept / last.steps);
      last.last_step = step;
    }
    count_.rewound_seconds += std::max(0.0, unreported) * step_seconds_;
    updates_ = skips_ = 0;
    for (const Report& report : standing_) {
      updates_ += report.updates;
      skips_ += report.skips;
    }
  }

  StepCount count_;
  // Not taken back, and their sums.
  std::vector<Report> standing_;
  double updates_ = 0, skips_ = 0;
  int64_t at_ = 0;
  double step_seconds_ = 0;
};

}  // namespace

double SecondsOf(const google::protobuf::Timestamp& time) {
  return static_cast<double>(time.seconds()) + static_cast<double>(time.nanos()) * 1e-9;
}

std::vector<std::string> DevicesOf(const v1::Job& job, const Events& events) {
  if (!job.devices().empty()) return {job.devices().begin(), job.devices().end()};
  for (auto event = events.rbegin(); event != events.rend(); ++event) {
    if (event->state_change().to() != Job::STARTING) continue;
    absl::string_view ids = event->state_change().reason();
    if (absl::ConsumePrefix(&ids, "on ")) return absl::StrSplit(ids, ", ");
  }
  return {};
}

HeldTime HeldTimeOf(const Events& events, double now) {
  HeldTime sum;
  Job::State state = Job::QUEUED;
  double since = 0, last = 0;
  const auto until = [&](double time) {
    const double seconds = std::max(0.0, time - since);
    if (Holds(state)) sum.held_seconds += seconds;
    if (state == Job::RUNNING) sum.running_seconds += seconds;
  };
  for (const v1::JobEvent& event : events) {
    const double time = SecondsOf(event.time());
    const double before = std::exchange(last, time);
    if (!event.has_state_change()) continue;
    until(WasFoundDead(event.state_change()) ? before : time);
    // A queued job that is cancelled passes through CANCELLING only where a worker had to be stopped.
    state = event.state_change().to();
    since = time;
  }
  until(now);
  return sum;
}

StepCount StepsOf(const Events& events) {
  StepCounter counter;
  for (const v1::JobEvent& event : events) counter.Add(event);
  return counter.Count();
}

std::vector<const v1::OverflowSkip*> StandingSkips(const Events& events) {
  std::vector<const v1::OverflowSkip*> skips;
  for (const v1::JobEvent& event : events) {
    if (event.has_rewound()) {
      const int64_t kept = event.rewound().to_step();
      skips.erase(std::remove_if(skips.begin(), skips.end(), [&](const auto* skip) { return skip->step() > kept; }),
                  skips.end());
    }
    if (event.has_overflow_skip()) skips.push_back(&event.overflow_skip());
  }
  return skips;
}

int64_t LastStepOf(const Events& events) {
  const StepCount count = StepsOf(events);
  return count.attempted - count.rewound;
}

std::map<std::string, std::map<int64_t, ReportedLoss>> LossCurves(const Events& events) {
  std::map<std::string, std::map<int64_t, ReportedLoss>> curves;
  for (const v1::JobEvent& event : events) {
    if (event.has_rewound()) {
      for (auto& [phase, curve] : curves) curve.erase(curve.upper_bound(event.rewound().to_step()), curve.end());
    }
    if (!event.has_step()) continue;
    for (const v1::PhaseReport& phase : event.step().phases()) {
      curves[phase.name()][event.step().last_step()] = {event.step().first_step(), phase.loss()};
    }
  }
  return curves;
}

}  // namespace ampd::client
