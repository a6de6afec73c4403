#include "client/analysis/diff.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/unit/client/analysis/example_events.h"

namespace ampd::client {
namespace {

using testing::HasSubstr;

v1::JobSpec Spec(const std::string& yaml) {
  v1::JobSpec spec;
  EXPECT_EQ(ParseYaml(yaml, "job", &spec), absl::OkStatus());
  return spec;
}

std::string Differences(const std::string& a, const std::string& b) {
  std::string text;
  for (const FieldDifference& d : SpecDifferences(Spec(a), Spec(b))) text += d.field + ": " + d.a + " | " + d.b + "\n";
  return text;
}

TEST(Diff, EqualSpecsDoNotDiffer) { EXPECT_EQ(Differences("{name: a, seed: 1}", "{name: a, seed: 1}"), ""); }

TEST(Diff, FieldsAreNamedByTheirPaths) {
  EXPECT_EQ(Differences("{name: a, precision: {mode: FP16}, train: {batch_size: 32}}",
                        "{name: b, precision: {mode: BF16}, train: {epochs: 2}}"),
            "precision.mode: FP16 | BF16\n"
            "train.epochs: - | 2\n"
            "train.batch_size: 32 | -\n");
}

TEST(Diff, JobsThatDifferInTheirNameAloneHaveEqualSpecs) {
  EXPECT_EQ(Differences("{name: a, seed: 1}", "{name: b, seed: 1}"), "");
  JobAndEvents a{ExampleJob(), ExampleRun()}, b = a;
  b.job.mutable_spec()->set_name("again");
  const std::string text = DiffText(a, b);
  EXPECT_THAT(text, HasSubstr("the specs are equal\n"));
  EXPECT_THAT(text, testing::ContainsRegex("B +[^ ]+ again\n"));
  EXPECT_THAT(DiffJson(a, b), HasSubstr("\"fields\": []"));
  // What a network in it is called is part of the model.
  EXPECT_EQ(Differences("{model: {networks: [{name: a}]}}", "{model: {networks: [{name: b}]}}"),
            "model.networks[0].name: \"a\" | \"b\"\n");
}

TEST(Diff, ListsAreComparedByPlace) {
  EXPECT_EQ(
      Differences("{model: {layers: [{dense: {units: 4}}, {relu: {}}]}}", "{model: {layers: [{dense: {units: 8}}]}}"),
      "model.layers[0].dense.units: 4 | 8\n"
      "model.layers[1]: relu { } | -\n");
}

TEST(Diff, LossesAtTheSameSteps) {
  JobAndEvents a{ExampleJob(), ExampleRun()}, b{ExampleJob(), ExampleRun()};
  b.events[7].mutable_step()->mutable_phases(0)->set_loss(2.25);
  b.job.mutable_spec()->mutable_precision()->set_mode(v1::PrecisionSpec::BF16);
  const std::string text = DiffText(a, b);
  EXPECT_THAT(text, HasSubstr("precision.mode  FP16  BF16"));
  EXPECT_THAT(text, HasSubstr("loss in 1 report of the same steps, equal to the bit at 0"));
  EXPECT_THAT(text, HasSubstr("100       2    2.25  +0.25"));
  EXPECT_THAT(DiffJson(a, b), HasSubstr("\"curves\": {\"main\": [[100, 2, 2.25]]}"));
}

TEST(Diff, ALossThatIsNoNumberIsEqualToItself) {
  JobAndEvents a{ExampleJob(), ExampleRun()};
  a.events[7].mutable_step()->mutable_phases(0)->set_loss(std::nan(""));
  JobAndEvents b = a;
  const std::string text = DiffText(a, b);
  EXPECT_THAT(text, HasSubstr("equal to the bit at 1"));
  EXPECT_THAT(text, testing::ContainsRegex("100 +nan +nan +-\n"));
  b.events[7].mutable_step()->mutable_phases(0)->set_loss(2.25);
  EXPECT_THAT(DiffText(a, b), HasSubstr("equal to the bit at 0"));
}

TEST(Diff, MeansOverOtherStepsAreNoMatch) {
  JobAndEvents a{ExampleJob(), ExampleRun()}, b{ExampleJob(), ExampleRun()};
  b.events[7].mutable_step()->set_first_step(a.events[7].step().first_step() + 1);
  EXPECT_THAT(DiffText(a, b), HasSubstr("no report of theirs is of the same steps"));
  EXPECT_THAT(DiffJson(a, b), HasSubstr("\"curves\": {}"));
}

TEST(Diff, EndedJobsNameTheDevicesThatTheyHad) {
  JobAndEvents a{ExampleJob(), ExampleRun()}, b{ExampleJob(), ExampleRun()};
  b.events[1].mutable_state_change()->set_reason("on cpu-1");
  b.job.mutable_spec()->mutable_precision()->set_mode(v1::PrecisionSpec::AUTO);
  b.job.mutable_summary()->set_mode(v1::PrecisionSpec::BF16);
  const std::string text = DiffText(a, b);
  EXPECT_THAT(text, testing::ContainsRegex("device +cpu-0 +cpu-1\n"));
  EXPECT_THAT(text, testing::ContainsRegex("mode +FP16 +BF16 \\(AUTO\\)\n"));
  EXPECT_THAT(text, testing::ContainsRegex("attempts +1 +1\n"));
}

TEST(Diff, LongValuesAreCutForTerminalsAlone) {
  JobAndEvents a{ExampleJob(), ExampleRun()}, b = a;
  const std::string path = "/srv/data/" + std::string(60, 'x');
  b.job.mutable_spec()->mutable_start_from()->set_path(path);
  EXPECT_THAT(DiffText(a, b), HasSubstr(path));
  EXPECT_THAT(DiffText(a, b, true), testing::Not(HasSubstr(path)));
  EXPECT_THAT(DiffText(a, b, true), HasSubstr("xx..\n"));
}

TEST(Diff, APlanWithoutShapesHasNoParameters) {
  JobAndEvents a{ExampleJob(), ExampleRun()}, b = a;
  a.job.mutable_plan()->add_warnings("data.train: gone");
  b.job.mutable_plan()->set_parameters(12);
  EXPECT_THAT(DiffText(a, b), testing::ContainsRegex("parameters +- +12\n"));
}

// In the events of an attempt's begin.
void Tell(const std::string& yaml, JobAndEvents* job) {
  v1::JobEvent& event = *job->events.insert(job->events.begin() + 2, v1::JobEvent());
  ASSERT_EQ(ParseYaml(yaml, "environment", event.mutable_environment()), absl::OkStatus());
}

constexpr char kCpu[] =
    "{engine_version: 0.1.0+g1a2b3c4, devices: [EPYC], libraries: {onednn: 3.1.1}, cpu_threads: 2, instruction_set: "
    "AVX2}";

TEST(Diff, EqualBitsAreExpectedOfEqualEnvironmentsOnCpus) {
  JobAndEvents a{ExampleJob(), ExampleRun()}, b = a;
  EXPECT_THAT(DiffText(a, b), HasSubstr("is not known, so equal specs may give other bits\n"));
  Tell(kCpu, &a);
  Tell(kCpu, &b);
  const std::string text = DiffText(a, b);
  EXPECT_THAT(text, testing::ContainsRegex("engine +0\\.1\\.0\\+g1a2b3c4 +0\\.1\\.0\\+g1a2b3c4\n"));
  EXPECT_THAT(text, testing::ContainsRegex("device name +EPYC +EPYC\nonednn +3.1.1 +3.1.1\nthreads +2 +2\n"));
  EXPECT_THAT(text, HasSubstr("\nboth computed with the same: equal specs and data give equal bits\n"));
  EXPECT_THAT(DiffJson(a, b), HasSubstr("\"deterministic\": true"));
  EXPECT_THAT(DiffJson(a, b), HasSubstr("{\"part\": \"instructions\", \"a\": \"AVX2\", \"b\": \"AVX2\"}"));
}

TEST(Diff, WhatDiffersInEnvironmentsIsNamed) {
  JobAndEvents a{ExampleJob(), ExampleRun()}, b = a;
  Tell(kCpu, &a);
  Tell(
      "{engine_version: 0.1.0+g5d6e7f8, devices: [EPYC], libraries: {onednn: 3.1.1}, cpu_threads: 4, instruction_set: "
      "AVX2}",
      &b);
  EXPECT_THAT(DiffText(a, b),
              HasSubstr("they computed with other engine, threads, so equal specs may give other bits"));
  EXPECT_THAT(DiffJson(a, b), HasSubstr("\"deterministic\": false"));
}

TEST(Diff, AnAttemptElsewhereIsNamed) {
  JobAndEvents a{ExampleJob(), ExampleRun()}, b = a;
  Tell(kCpu, &a);
  Tell(kCpu, &a);
  Tell(kCpu, &b);
  Tell(
      "{engine_version: 0.1.0+g1a2b3c4, devices: [Xeon], libraries: {onednn: 3.1.1}, cpu_threads: 2, instruction_set: "
      "AVX512_CORE}",
      &b);
  EXPECT_THAT(DiffText(a, b), HasSubstr("attempts of B computed with other device, instructions than its first"));
}

TEST(Diff, AutoMayTakeOtherModes) {
  JobAndEvents a{ExampleJob(), ExampleRun()}, b = a;
  for (JobAndEvents* job : {&a, &b}) {
    Tell(kCpu, job);
    job->events.emplace_back().mutable_mode_chosen()->set_mode(v1::PrecisionSpec::BF16);
  }
  EXPECT_THAT(DiffJson(a, b), HasSubstr("\"deterministic\": true"));
  b.events.back().mutable_mode_chosen()->set_mode(v1::PrecisionSpec::FP32);
  EXPECT_THAT(DiffText(a, b), HasSubstr("AUTO took BF16 for A and FP32 for B"));
  EXPECT_THAT(DiffJson(a, b), HasSubstr("\"deterministic\": false"));
}

TEST(Diff, OneVersionMayBeOfManyRevisions) {
  for (const auto& [version, reason] :
       {std::pair("0.1.0", "both name the engine 0.1.0 without the revision that it was built of"),
        std::pair("0.1.0+g1a2b3c4.dirty", "which was built of files that differ from its revision")}) {
    JobAndEvents a{ExampleJob(), ExampleRun()}, b = a;
    for (JobAndEvents* job : {&a, &b})
      Tell(absl::StrCat("{engine_version: ", version, ", instruction_set: AVX2}"), job);
    EXPECT_THAT(DiffText(a, b), HasSubstr(reason));
    EXPECT_THAT(DiffJson(a, b), HasSubstr("\"deterministic\": false"));
  }
}

TEST(Diff, OnGpusKernelsAreMeasuredForEachJob) {
  JobAndEvents a{ExampleJob(), ExampleRun()}, b = a;
  for (JobAndEvents* job : {&a, &b}) {
    Tell(
        "{engine_version: 0.1.0+g1a2b3c4, devices: [H100, H100], libraries: {nccl: 2.27.7, cuda: '13.0', cudnn: "
        "9.19.0}, "
        "cpu_threads: 8}",
        job);
  }
  const std::string text = DiffText(a, b);
  EXPECT_THAT(text, testing::ContainsRegex("device name +2 x H100 +2 x H100\ncuda +13.0 +13.0\ncudnn +9.19.0"));
  EXPECT_THAT(text, HasSubstr("on a GPU each job measures which kernels are fast"));
}

TEST(Diff, JobsWithoutReportsAreComparedAsFarAsTheyGo) {
  EXPECT_THAT(DiffText({ExampleJob(), {}}, {ExampleJob(), {}}), HasSubstr("no report of theirs is of the same steps"));
}

}  // namespace
}  // namespace ampd::client
