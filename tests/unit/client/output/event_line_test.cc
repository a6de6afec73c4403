#include "client/output/event_line.h"

#include "gtest/gtest.h"
#include "proto/spec/yaml.h"

namespace ampd::client {
namespace {

std::string LineOf(const std::string& payload) {
  v1::JobEvent event;
  EXPECT_EQ(ParseYaml("time: '2026-01-31T12:00:01Z'\n" + payload, "event", &event), absl::OkStatus());
  return EventLine(event);
}

TEST(EventLineTest, SaysWhatHappened) {
  EXPECT_EQ(LineOf("state_change: {from: QUEUED, to: STARTING}"), "12:00:01  STARTING");
  EXPECT_EQ(LineOf("state_change: {to: QUEUED, reason: the server is shutting down}"),
            "12:00:01  QUEUED: the server is shutting down");
  EXPECT_EQ(LineOf("state_change: {to: RETRYING, failure: {class: WORKER_CRASH, message: killed by signal 9}}"),
            "12:00:01  RETRYING WORKER_CRASH: killed by signal 9");
  EXPECT_EQ(LineOf("step: {first_step: 1, last_step: 40, total_steps: 400, epoch: 2, samples_per_second: 9100, phases: "
                   "[{name: main, loss: 0.31214, loss_scale: 65536, learning_rate: 0.001, steps_skipped: 3}]}"),
            "12:00:01  step 40/400  epoch 2  loss 0.3121  lr 0.001  scale 65536  skips 3  9.1k samples/s");
  EXPECT_EQ(LineOf("overflow_skip: {step: 12, phase: main, scale_before: 65536, scale_after: 32768, stage: GRADIENT, "
                   "first_tensor: conv1.weight, kind: KIND_INF, epoch: 1, batch: 3, calibration: true}"),
            "12:00:01  overflow  step 12 skipped, scale 65536 -> 32768, Inf in GRADIENT conv1.weight, epoch 1 batch 3 "
            "(calibration)");
  EXPECT_EQ(LineOf("overflow_skip: {step: 12, scale_before: 8, scale_after: 8, epoch: 1}"),
            "12:00:01  overflow  step 12 skipped, scale stays 8, epoch 1 batch 0");
  EXPECT_EQ(LineOf("loss_scale_change: {step: 2000, phase: gan, scale_before: 65536, scale_after: 131072}"),
            "12:00:01  scale gan 65536 -> 131072 at step 2000");
  EXPECT_EQ(LineOf("evaluation: {step: 400, epoch: 2, loss: 0.25, accuracy: 0.9134, metrics: {accuracy: 0.9134, loss: "
                   "0.25, top5: 0.99}}"),
            "12:00:01  evaluation  epoch 2  step 400  accuracy 0.9134  loss 0.25  top5 0.99");
  EXPECT_EQ(LineOf("checkpoint: {step: 400, checkpoint: step-000000400, size_bytes: 1048576}"),
            "12:00:01  checkpoint step-000000400  1.0 MiB");
  EXPECT_EQ(LineOf("rewound: {to_step: 200, reason: the worker died}"),
            "12:00:01  rewound to step 200: the worker died");
  EXPECT_EQ(LineOf("log: {severity: WARNING, text: \"slow\\u001b[2J\"}"), "12:00:01  WARNING slow?[2J");
  EXPECT_EQ(LineOf("log: {severity: INFO, text: hello}"), "12:00:01  hello");
  EXPECT_EQ(LineOf(""), "12:00:01  an event of a newer version");
}

}  // namespace
}  // namespace ampd::client
