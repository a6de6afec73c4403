#include "client/analysis/profile.h"

#include "gmock/gmock.h"
#include "tests/unit/client/analysis/example_events.h"

namespace ampd::client {
namespace {

using testing::HasSubstr;

// Two steps of 10 ms, of which each waits 1 ms for input.
v1::StepProfile Example() {
  return EventsOf({R"(
step_profile:
  first_step: 11
  last_step: 12
  timing: KERNEL_ACTIVITY
  step_seconds: 0.010
  input_wait_seconds: 0.001
  usual_step_seconds: 0.0095
  parts:
    - {name: conv1.conv2d.grad_filter, layer: conv1, op: conv2d_grad_filter, stage: BACKWARD, dtype: f16, calls: 4,
       seconds: 0.008, flops: 16000000000, bytes: 4000000}
    - {name: conv1.conv2d, layer: conv1, op: conv2d, stage: FORWARD, dtype: f16, calls: 4, seconds: 0.004,
       flops: 8000000000, bytes: 4000000}
    - {name: head.matmul, layer: head, op: matmul, stage: FORWARD, dtype: f32, calls: 4, seconds: 0.001, flops: 1000}
    - {name: update, stage: UPDATE, calls: 2, seconds: 0.002}
    - {name: inputs, stage: INPUT, calls: 4, seconds: 0.0002}
  kernels:
    - {name: wgrad_hmma, layer: conv1, op: conv2d_grad_filter, calls: 4, seconds: 0.008}
    - {name: copy, calls: 9, seconds: 0.0002}
)"})
      .front()
      .step_profile();
}

std::string Text(ProfileBy by, int top = 20) {
  const auto text = ProfileText(Example(), by, top);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

TEST(Profile, RowsAreMeansOfAStepAndAddUp) {
  EXPECT_EQ(Text(ProfileBy::kNode),
            "steps 11 to 12: 10 ms each, 1 ms of it waiting for input; 9.5 ms when not profiled\n"
            "timed by the device's record of each kernel\n"
            "  TIME  SHARE  CALLS  GFLOP/S  GB/S  STAGE     DTYPE  NODE\n"
            "  4 ms  40.0%      2   2000.0   0.5  backward  f16    conv1.conv2d.grad_filter\n"
            "  2 ms  20.0%      2   2000.0   1.0  forward   f16    conv1.conv2d\n"
            "  1 ms  10.0%      1        -     -  update           update\n"
            "500 us   5.0%      2      0.0     -  forward   f32    head.matmul\n"
            "100 us   1.0%      2        -     -  input            inputs\n"
            "  1 ms  10.0%      -        -     -                   (waiting for input)\n"
            "1.4 ms  14.0%      -        -     -                   (between: the host's own work)\n");
}

TEST(Profile, SumsUpByLayerOpAndStage) {
  const std::string by_layer = Text(ProfileBy::kLayer);
  EXPECT_THAT(by_layer, HasSubstr("  6 ms  60.0%      4   2000.0   0.7  backward,forward  f16    conv1\n"));
  EXPECT_THAT(by_layer, HasSubstr("update\n"));
  EXPECT_THAT(Text(ProfileBy::kOp), HasSubstr("matmul\n"));
  EXPECT_THAT(Text(ProfileBy::kStage), HasSubstr("2.5 ms  25.0%      4"));
}

TEST(Profile, OfKernelsHasTheirNames) {
  EXPECT_THAT(Text(ProfileBy::kKernel),
              HasSubstr("4 ms  40.0%      2        -     -                wgrad_hmma  (conv1)\n"));
  v1::StepProfile on_cpu = Example();
  on_cpu.clear_kernels();
  on_cpu.set_timing(v1::StepProfile::HOST_CLOCK);
  const absl::Status refused = ProfileText(on_cpu, ProfileBy::kKernel, 20).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("host's clock"));
}

TEST(Profile, WhatTheTopLeavesOutIsSummedUp) {
  const std::string text = Text(ProfileBy::kNode, 2);
  EXPECT_THAT(text, HasSubstr("1.6 ms  16.0%      5        -     -                   (3 more; --top shows them)\n"));
  EXPECT_THAT(text, HasSubstr("1.4 ms  14.0%"));
}

TEST(Profile, ANoteStandsWhereThereAreNoParts) {
  v1::StepProfile whole = Example();
  whole.clear_parts();
  whole.set_note("one kernel\x1b[2J takes its steps");
  const auto text = ProfileText(whole, ProfileBy::kNode, 20);
  ASSERT_TRUE(text.ok());
  EXPECT_THAT(*text, HasSubstr("one kernel?[2J takes its steps\n"));
  EXPECT_THAT(*text, HasSubstr("9 ms  90.0%"));
}

TEST(Profile, TheNewestIsShownAgain) {
  Events events = EventsOf(
      {"step_profile: {first_step: 1, last_step: 2}", "step_profile: {first_step: 5, last_step: 6}", "log: {text: x}"});
  EXPECT_EQ(NewestProfile(events)->last_step(), 6);
  EXPECT_EQ(NewestProfile({}).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace ampd::client
