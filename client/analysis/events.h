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

// Ids of the devices that the job holds, else of those that the newest of its starts names; empty where it had none.
std::vector<std::string> DevicesOf(const v1::Job& job, const Events& events);

// How long the job held its devices, and how long of it in state RUNNING: from the changes of state, up to `now` (Unix
// seconds) for a job that holds them still. STARTING to any state that holds none is held time; but where the daemon
// came back and found the worker dead, only up to the last event before, as the daemon counts it.
struct HeldTime {
  double held_seconds = 0;
  double running_seconds = 0;
};
HeldTime HeldTimeOf(const Events& events, double now);

// Steps as they were attempted, those that were lost by going back included.
struct StepCount {
  int64_t attempted = 0;
  // Taken back by `rewound`, and how long they took, seconds: at the time of a step in the newest report, as the daemon
  // counts it.
  int64_t rewound = 0;
  double rewound_seconds = 0;
  // Of the steps that were not taken back: those whose update was not made because a gradient was not finite, and how
  // long they took, seconds. Of a step of several phases some of which were skipped it is their share of its updates.
  double skipped = 0;
  double skipped_seconds = 0;
  // Of the steps that were not taken back: those that were not skipped either.
  double useful = 0;
  // In reports, of all attempts.
  int64_t reported = 0;
  // Mean of step_seconds over the reports' steps; 0 without one.
  double step_seconds = 0;
  // Over all reports: time waited for input, and time that the steps took together.
  double input_wait_seconds = 0;
  double total_seconds = 0;
};
StepCount StepsOf(const Events& events);

// A mean over the steps from first_step on.
struct ReportedLoss {
  int64_t first_step = 0;
  double loss = 0;
};

// Skipped updates that were not taken back by going back, in order; of each step its last attempt's. They point into
// `events`.
std::vector<const v1::OverflowSkip*> StandingSkips(const Events& events);

// The last step that was attempted and not taken back, as events number steps; 0 where none was.
int64_t LastStepOf(const Events& events);

// By phase: the loss that was reported, by the last step of the report. What was taken back by going back is not in it.
std::map<std::string, std::map<int64_t, ReportedLoss>> LossCurves(const Events& events);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_ANALYSIS_EVENTS_H_
