#include "client/output/event_line.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "proto/spec/yaml.h"
#include "tests/unit/client/time_zone.h"

namespace ampd::client {
namespace {

std::string LineOf(const std::string& payload) {
  const ScopedTimeZone zone("UTC");
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
  EXPECT_EQ(LineOf("step: {last_step: 40, epoch: 2, samples_per_second: 9100, step_seconds: 0.00125, "
                   "model_flops_utilization: 0.4125}"),
            "12:00:01  step 40  epoch 2  9.1k samples/s  1.25 ms a step  MFU 41.2%");
  EXPECT_EQ(LineOf("overflow_skip: {step: 12, phase: main, scale_before: 65536, scale_after: 32768, stage: GRADIENT, "
                   "first_tensor: conv1.weight, kind: KIND_INF, epoch: 1, batch: 3, calibration: true}"),
            "12:00:01  overflow  step 12 skipped, scale 65536 -> 32768, Inf in GRADIENT conv1.weight, epoch 1 batch 3 "
            "(calibration)");
  EXPECT_EQ(LineOf("overflow_skip: {step: 12, scale_before: 8, scale_after: 8, epoch: 1}"),
            "12:00:01  overflow  step 12 skipped, scale stays 8, epoch 1 batch 0");
  EXPECT_EQ(LineOf("loss_scale_change: {step: 2000, phase: gan, scale_before: 65536, scale_after: 131072}"),
            "12:00:01  scale gan 65536 -> 131072 at step 2000");
  EXPECT_EQ(
      LineOf("precision_change: {step: 6, phase: main, mode_before: FP16, mode_after: BF16, reason: at the floor}"),
      "12:00:01  precision FP16 -> BF16 after step 6: at the floor");
  EXPECT_EQ(LineOf("gradient_diagnostics: {step: 500, phase: main, scale: 65536, largest_safe_scale: 1048576, tensors: "
                   "[{tensor: head.grad, nonzero: 100, flushed_unscaled: 0.25, largest_safe_scale: 1048576}, "
                   "{tensor: conv1.grad, nonzero: 300, flushed_unscaled: 0.5, flushed_scaled: 0.01, "
                   "largest_safe_scale: 2097152}]}"),
            "12:00:01  gradients  step 500: fp16 flushes 43.75% to zero without a scale, 0.75% with 2^16; most in "
            "conv1.grad, 50% and 1%; largest safe scale 2^20 for head.grad");
  EXPECT_EQ(LineOf("step_profile: {first_step: 101, last_step: 120, step_seconds: 0.01, parts: [{name: conv1.conv2d, "
                   "seconds: 0.05}, {name: update, seconds: 0.01}]}"),
            "12:00:01  profile  steps 101 to 120: 10 ms each; most in conv1.conv2d, 25%");
  EXPECT_EQ(LineOf("environment: {engine_version: 0.1.0+g1a2b3c4, devices: [A, B], libraries: {onednn: 3.1.1, abc: "
                   "'2'}, cpu_threads: 2, instruction_set: AVX2}"),
            "12:00:01  computes with  engine 0.1.0+g1a2b3c4, device A, B, abc 2, onednn 3.1.1, threads 2, instructions "
            "AVX2");
  EXPECT_EQ(LineOf("gradient_diagnostics: {step: 5, tensors: [{tensor: a, zeros: 3}]}"),
            "12:00:01  gradients  step 5: all zero");
  EXPECT_EQ(LineOf("evaluation: {step: 400, epoch: 2, loss: 0.25, accuracy: 0.9134, metrics: {accuracy: 0.9134, loss: "
                   "0.25, top5: 0.99}}"),
            "12:00:01  evaluation  after epoch 2  step 400  accuracy 0.9134  loss 0.25  top5 0.99");
  EXPECT_EQ(LineOf("evaluation: {loss: 1, metrics: {h: 1, c: 1, g: 1, a: 1, e: 1, b: 1, f: 1, d: 1}}"),
            "12:00:01  evaluation  step 0  loss 1  a 1  b 1  c 1  d 1  e 1  f 1  g 1  h 1");
  EXPECT_EQ(LineOf("checkpoint: {step: 400, checkpoint: step-000000400, size_bytes: 1048576}"),
            "12:00:01  checkpoint step-000000400  1.0 MiB");
  EXPECT_EQ(LineOf("rewound: {to_step: 200, reason: the worker died}"),
            "12:00:01  rewound to step 200: the worker died");
  EXPECT_EQ(LineOf("log: {severity: WARNING, text: \"slow\\u001b[2J\"}"), "12:00:01  WARNING slow?[2J");
  EXPECT_EQ(LineOf("log: {severity: INFO, text: hello}"), "12:00:01  hello");
  EXPECT_EQ(LineOf(""), "12:00:01  an event of a newer version");
}

// Phases of a report: "name: loss applied skipped".
struct Phase {
  std::string name, loss;
  int64_t applied, skipped;
};

v1::JobEvent StepEvent(int64_t first, int64_t last, const std::vector<Phase>& phases) {
  std::string text = absl::StrCat("step: {first_step: ", first, ", last_step: ", last, ", epoch: 1, phases: [");
  for (const Phase& phase : phases) {
    absl::StrAppend(&text, "{name: ", phase.name, ", loss: ", phase.loss, ", steps_applied: ", phase.applied,
                    ", steps_skipped: ", phase.skipped, "},");
  }
  text.back() = ']';
  v1::JobEvent event;
  EXPECT_EQ(ParseYaml(text + "}", "event", &event), absl::OkStatus());
  return event;
}

class IdlePhasesTest : public testing::Test {
 protected:
  // As who watches sees it.
  std::string LineOf(const v1::JobEvent& event) {
    idle_.Observe(event);
    return EventLine(event, idle_);
  }

  IdlePhases idle_;
};

TEST_F(IdlePhasesTest, HaveNoLossWhereOthersHaveNone) {
  EXPECT_THAT(LineOf(StepEvent(1, 1, {{"disc", "0.5", 1, 0}, {"gen", "NaN", 0, 0}})),
              testing::HasSubstr("disc loss 0.5  lr 0  scale 0  skips 0  gen loss -  lr"));
  EXPECT_THAT(LineOf(StepEvent(2, 2, {{"disc", "0.5", 2, 0}, {"gen", "0.25", 1, 0}})),
              testing::HasSubstr("gen loss 0.25"));
  EXPECT_THAT(LineOf(StepEvent(3, 3, {{"disc", "0.5", 3, 0}, {"gen", "NaN", 1, 0}})), testing::HasSubstr("gen loss -"));
  // It ran, and its loss was NaN.
  EXPECT_THAT(LineOf(StepEvent(4, 4, {{"disc", "0.5", 4, 0}, {"gen", "NaN", 1, 1}})),
              testing::HasSubstr("gen loss nan"));
}

TEST_F(IdlePhasesTest, ALossThatIsNanIsToldWhereItIsNotKnownWhetherThePhaseRan) {
  EXPECT_THAT(LineOf(StepEvent(7, 7, {{"main", "NaN", 5, 2}})), testing::HasSubstr("loss nan"));
  EXPECT_THAT(LineOf(StepEvent(8, 8, {{"main", "NaN", 5, 2}})), testing::HasSubstr("loss -"));
  v1::JobEvent rewound;
  rewound.mutable_rewound()->set_to_step(7);
  LineOf(rewound);
  EXPECT_THAT(LineOf(StepEvent(8, 8, {{"main", "NaN", 5, 2}})), testing::HasSubstr("loss nan"));
  // Done again from the start, which is known.
  EXPECT_THAT(LineOf(StepEvent(1, 1, {{"main", "NaN", 0, 1}})), testing::HasSubstr("loss nan"));
  EXPECT_THAT(LineOf(StepEvent(1, 1, {{"main", "NaN", 0, 0}})), testing::HasSubstr("loss -"));
}

}  // namespace
}  // namespace ampd::client
