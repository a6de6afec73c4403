// Events of a job as a daemon tells them, for the tests of what explains jobs.
#ifndef AMPD_TESTS_UNIT_CLIENT_ANALYSIS_EXAMPLE_EVENTS_H_
#define AMPD_TESTS_UNIT_CLIENT_ANALYSIS_EXAMPLE_EVENTS_H_

#include <string>

#include "client/analysis/events.h"
#include "gtest/gtest.h"
#include "proto/spec/yaml.h"

namespace ampd::client {

// One event a line of YAML: "{time: ..., step: {...}}".
inline Events EventsOf(const std::vector<std::string>& lines) {
  Events events;
  for (const std::string& line : lines) {
    v1::JobEvent event;
    EXPECT_EQ(ParseYaml(line, "event", &event), absl::OkStatus()) << line;
    event.set_first_sequence(events.size() + 1);
    event.set_sequence(events.size() + 1);
    events.push_back(event);
  }
  return events;
}

// QUEUED for a minute, STARTING on cpu-0 for 2 s; 100 steps of 0.1 s each in 10 s, of which `wait` seconds were spent
// waiting, and one that is not reported; the first and the last of these are skipped; back to step 80 and on to 100;
// ended after 20 s in RUNNING.
inline Events ExampleRun(double wait = 1) {
  const std::string waited = std::to_string(wait);
  return EventsOf({
      R"({time: "2026-01-31T12:00:00Z", state_change: {to: QUEUED}})",
      R"({time: "2026-01-31T12:01:00Z", state_change: {from: QUEUED, to: STARTING, reason: "on cpu-0"}})",
      R"({time: "2026-01-31T12:01:02Z", state_change: {from: STARTING, to: RUNNING}})",
      R"({time: "2026-01-31T12:01:03Z", overflow_skip: {step: 1, phase: main, scale_before: 65536, scale_after: 32768, stage: GRADIENT, first_tensor: "head.weight", kind: KIND_INF, calibration: true}})",
      R"({time: "2026-01-31T12:01:12Z", step: {first_step: 1, last_step: 100, total_steps: 100, step_seconds: 0.1, input_wait_seconds: )" +
          waited + R"(, phases: [{name: main, loss: 2.5, loss_scale: 32768, steps_applied: 99, steps_skipped: 1}]}})",
      R"({time: "2026-01-31T12:01:13Z", overflow_skip: {step: 101, phase: main, scale_before: 32768, scale_after: 16384, stage: GRADIENT, first_tensor: "conv1.weight", kind: KIND_INF}})",
      R"({time: "2026-01-31T12:01:14Z", rewound: {to_step: 80, reason: "the worker died"}})",
      R"({time: "2026-01-31T12:01:16Z", step: {first_step: 81, last_step: 100, total_steps: 100, step_seconds: 0.1, input_wait_seconds: 0, phases: [{name: main, loss: 2.0, loss_scale: 16384, steps_applied: 99, steps_skipped: 1}]}})",
      R"({time: "2026-01-31T12:01:22Z", state_change: {from: RUNNING, to: SUCCEEDED}})",
  });
}

inline v1::Job ExampleJob(v1::Job::State state = v1::Job::SUCCEEDED) {
  v1::Job job;
  EXPECT_EQ(ParseYaml(R"(
id: 01hq3v7m
state: QUEUED
end_time: "2026-01-31T12:01:22Z"
attempt: 1
spec: {name: demo, precision: {mode: FP16}, train: {batch_size: 50, micro_batch_size: 50}, retry: {max_attempts: 3}}
summary: {step: 100, total_steps: 100, steps_applied: 99, steps_skipped: 1, loss: 2.0, accuracy: 0.5, step_seconds: 0.1}
)",
                      "job", &job),
            absl::OkStatus());
  job.set_state(state);
  return job;
}

}  // namespace ampd::client

#endif  // AMPD_TESTS_UNIT_CLIENT_ANALYSIS_EXAMPLE_EVENTS_H_
