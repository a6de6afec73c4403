#include "client/output/job_text.h"

#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "proto/spec/resolve.h"
#include "proto/spec/yaml.h"
#include "tests/unit/client/time_zone.h"

namespace ampd::client {
namespace {

v1::Job Example() {
  v1::Job job;
  EXPECT_EQ(ParseYaml(R"(
id: 01hq3v7m
state: QUEUED
queue_reason: RESOURCES
queue_position: 2
create_time: "2026-01-31T12:00:01Z"
spec:
  name: demo
  precision: {mode: FP16}
  model: {layers: [{dense: {units: 10}}], loss: {softmax_cross_entropy: {}}}
  data: {train: {glyphs: {}}}
failure: {class: DATA, message: "evil\nname: injected"}
plan: {parameters: 7850, parameter_bytes: 2048, activation_bytes: 1024, input_shape: [28, 28, 1],
       layers: [{name: dense_0, kind: dense, dtype: f16, output_shape: [10], parameters: 7850}]}
)",
                      "job", &job),
            absl::OkStatus());
  return job;
}

TEST(JobTextTest, ShowsWhatIsKnown) {
  const ScopedTimeZone zone("UTC");
  EXPECT_EQ(JobText(Example()),
            "id:         01hq3v7m\n"
            "name:       demo\n"
            "state:      QUEUED (RESOURCES, 2 in line)\n"
            "failure:    DATA: evil name: injected\n"
            "mode:       FP16\n"
            "created:    2026-01-31 12:00:01\n"
            "parameters: 7850\n");
}

TEST(JobTextTest, TimesAreLocalButInFiles) {
  const ScopedTimeZone zone("IST-5:30");
  EXPECT_NE(JobText(Example()).find("created:    2026-01-31 17:30:01\n"), std::string::npos);
  EXPECT_NE(ResubmittableYaml(Example()).find("# created:    2026-01-31T12:00:01Z\n"), std::string::npos);
}

TEST(JobTextTest, ACostIsTheDaemons) {
  v1::Job job = Example();
  job.set_cost_usd(12.345678);
  job.set_wasted_usd(0.0223456);
  EXPECT_NE(JobText(job).find("cost:       $12.35, of which $0.0223 for steps lost or skipped\n"), std::string::npos);
}

TEST(JobTextTest, SpeedsAreThoseOfTheLastReport) {
  v1::Job job = Example();
  job.mutable_summary()->set_samples_per_second(9100);
  job.mutable_summary()->set_step_seconds(0.0035);
  EXPECT_NE(JobText(job).find("speed:      9.1k samples/s (last report)\nstep time:  3.5 ms (last report)\n"),
            std::string::npos)
      << JobText(job);
}

TEST(JobTextTest, WhatIsNotKnownIsLeftOut) {
  v1::Job job = Example();
  // Of data that could not be read; and of a job that was validated alone.
  job.mutable_plan()->Clear();
  job.mutable_plan()->add_warnings("data.train: gone");
  job.clear_state();
  for (const std::string& text : {JobText(job), ResubmittableYaml(job)}) {
    EXPECT_EQ(text.find("parameters"), std::string::npos) << text;
    EXPECT_EQ(text.find("UNSPECIFIED"), std::string::npos) << text;
    EXPECT_NE(text.find("data.train: gone"), std::string::npos) << text;
  }
}

TEST(JobTextTest, CountsFailures) {
  v1::Job job = Example();
  job.mutable_spec()->mutable_retry()->set_max_attempts(3);
  job.set_attempt(2);
  job.set_failures(1);
  EXPECT_NE(JobText(job).find("attempt:    2, 1 failure of at most 3\n"), std::string::npos);
  job.set_failures(2);
  EXPECT_NE(JobText(job).find("attempt:    2, 2 failures of at most 3\n"), std::string::npos);
}

TEST(JobTextTest, TellsWhatWasOddAtSubmit) {
  v1::Job job = Example();
  job.mutable_plan()->add_warnings("data.train: gone");
  job.mutable_plan()->add_warnings("resources: much");
  EXPECT_NE(JobText(job).find("warning:    data.train: gone\nwarning:    resources: much\n"), std::string::npos);
}

TEST(ModeTextTest, OfAutoItIsWhatWasTaken) {
  v1::Job job = Example();
  EXPECT_EQ(ModeText(job), "FP16");
  job.mutable_spec()->mutable_precision()->set_mode(v1::PrecisionSpec::AUTO);
  EXPECT_EQ(ModeOf(job), v1::PrecisionSpec::AUTO);
  EXPECT_EQ(ModeText(job), "AUTO");
  job.mutable_summary()->set_mode(v1::PrecisionSpec::BF16);
  EXPECT_EQ(ModeOf(job), v1::PrecisionSpec::BF16);
  EXPECT_EQ(ModeText(job), "BF16 (AUTO)");
}

TEST(PlanTextTest, ListsLayers) {
  EXPECT_EQ(PlanText(Example().plan()),
            "LAYER    KIND   DTYPE  OUTPUT   PARAMETERS\n"
            "input                  28x28x1\n"
            "dense_0  dense  f16    10             7850\n"
            "7850 parameters; memory: 2.0 KiB for them, 1.0 KiB for activations\n");
}

TEST(ResubmittableYamlTest, GivesTheSameSpecBack) {
  v1::Job job = Example();
  const absl::StatusOr<ResolvedJobSpec> resolved = ResolveJobSpec(job.spec());
  ASSERT_TRUE(resolved.ok());
  *job.mutable_spec() = resolved->proto();
  v1::JobSpec again;
  const std::string text = ResubmittableYaml(job);
  ASSERT_EQ(ParseYaml(text, "again", &again), absl::OkStatus()) << text;
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(job.spec(), again));
  EXPECT_EQ(text.find("# id:         01hq3v7m\n"), 0);
}

}  // namespace
}  // namespace ampd::client
