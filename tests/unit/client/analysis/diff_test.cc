#include "client/analysis/diff.h"

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
            "name: \"a\" | \"b\"\n"
            "precision.mode: FP16 | BF16\n"
            "train.epochs: - | 2\n"
            "train.batch_size: 32 | -\n");
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
  EXPECT_THAT(text, HasSubstr("loss at 1 steps that both reported, equal to the bit at 0"));
  EXPECT_THAT(text, HasSubstr("100       2    2.25  +0.25"));
  EXPECT_THAT(DiffJson(a, b), HasSubstr("\"curves\": {\"main\": [[100, 2, 2.25]]}"));
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

TEST(Diff, JobsWithoutReportsAreComparedAsFarAsTheyGo) {
  EXPECT_THAT(DiffText({ExampleJob(), {}}, {ExampleJob(), {}}), HasSubstr("no step was reported by both"));
}

}  // namespace
}  // namespace ampd::client
