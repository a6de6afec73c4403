// What the verbs that explain a job read out of its events. Pure.
#ifndef AMPD_CLIENT_ANALYSIS_EVENTS_H_
#define AMPD_CLIENT_ANALYSIS_EVENTS_H_

#include <map>
#include <string>
#include <vector>

#include "ampd/v1/event.pb.h"
#include "ampd/v1/job.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace ampd::client {

using Events = std::vector<v1::JobEvent>;

// Unix seconds.
double SecondsOf(const google::protobuf::Timestamp& time);

// How long the job held its devices, and how long of it in state RUNNING: from the changes of state, up to `now` (Unix
// seconds) for a job that holds them still. STARTING to any state that holds none is held time.
struct HeldTime {
  double held_seconds = 0;
  double running_seconds = 0;
};
HeldTime HeldTimeOf(const Events& events, double now);

// Steps as they were attempted, those that were lost by going back included.
struct StepCount {
  int64_t attempted = 0;
  // Attempted more than once: `rewound` took them back.
  int64_t rewound = 0;
  // Not applied because a gradient was not finite, of all attempts.
  int64_t skipped = 0;
  // Mean of step_seconds over the reports' steps; 0 without one.
  double step_seconds = 0;
  // Over all reports: time waited for input, and time that the steps took together.
  double input_wait_seconds = 0;
  double total_seconds = 0;
};
StepCount StepsOf(const Events& events);

// By phase: the loss that was reported for a step, as "last step of the report" -> loss. What was taken back by going
// back is not in it.
std::map<std::string, std::map<int64_t, double>> LossCurves(const Events& events);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_ANALYSIS_EVENTS_H_
