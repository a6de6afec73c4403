#include "client/analysis/events.h"

#include <algorithm>

namespace ampd::client {
namespace {

using v1::Job;

bool Holds(Job::State state) {
  return state == Job::STARTING || state == Job::RUNNING || state == Job::PREEMPTING || state == Job::RECOVERING ||
         state == Job::CANCELLING;
}

}  // namespace

double SecondsOf(const google::protobuf::Timestamp& time) {
  return static_cast<double>(time.seconds()) + static_cast<double>(time.nanos()) * 1e-9;
}

HeldTime HeldTimeOf(const Events& events, double now) {
  HeldTime sum;
  Job::State state = Job::QUEUED;
  double since = 0;
  const auto until = [&](double time) {
    const double seconds = std::max(0.0, time - since);
    if (Holds(state)) sum.held_seconds += seconds;
    if (state == Job::RUNNING) sum.running_seconds += seconds;
  };
  for (const v1::JobEvent& event : events) {
    if (!event.has_state_change()) continue;
    const double time = SecondsOf(event.time());
    until(time);
    // A queued job that is cancelled passes through CANCELLING only where a worker had to be stopped.
    state = event.state_change().to();
    since = time;
  }
  until(now);
  return sum;
}

StepCount StepsOf(const Events& events) {
  StepCount count;
  int64_t at = 0;
  for (const v1::JobEvent& event : events) {
    if (event.has_rewound()) {
      count.rewound += std::max<int64_t>(0, at - event.rewound().to_step());
      at = event.rewound().to_step();
    }
    if (event.has_overflow_skip()) ++count.skipped;
    if (!event.has_step()) continue;
    const v1::StepReport& step = event.step();
    const int64_t steps = std::max<int64_t>(0, step.last_step() - step.first_step() + 1);
    count.attempted += steps;
    at = step.last_step();
    count.input_wait_seconds += step.input_wait_seconds();
    if (step.has_step_seconds()) count.total_seconds += step.step_seconds() * static_cast<double>(steps);
  }
  if (count.attempted > 0) count.step_seconds = count.total_seconds / static_cast<double>(count.attempted);
  return count;
}

std::map<std::string, std::map<int64_t, double>> LossCurves(const Events& events) {
  std::map<std::string, std::map<int64_t, double>> curves;
  for (const v1::JobEvent& event : events) {
    if (event.has_rewound()) {
      for (auto& [phase, curve] : curves) curve.erase(curve.upper_bound(event.rewound().to_step()), curve.end());
    }
    if (!event.has_step()) continue;
    for (const v1::PhaseReport& phase : event.step().phases()) {
      curves[phase.name()][event.step().last_step()] = phase.loss();
    }
  }
  return curves;
}

}  // namespace ampd::client
