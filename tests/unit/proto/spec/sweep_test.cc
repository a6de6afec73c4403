#include "proto/spec/sweep.h"

#include <gmock/gmock.h>

#include <limits>

#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "proto/spec/resolve.h"
#include "proto/spec/text.h"
#include "proto/spec/yaml.h"

namespace ampd {
namespace {

using google::protobuf::util::MessageDifferencer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::JobSpec Parsed(const std::string& sweep) {
  v1::JobSpec spec;
  EXPECT_EQ(ParseYaml(R"(
model: {layers: [{dense: {units: 10}}], loss: {softmax_cross_entropy: {}}}
data: {train: {glyphs: {}}}
optimizer: {adamw: {learning_rate: 0.1}}
)" + sweep,
                      "job.yaml", &spec),
            absl::OkStatus());
  return spec;
}

SweepExpansion Expanded(const std::string& sweep) {
  absl::StatusOr<SweepExpansion> expansion = SweepExpansion::Of(Parsed(sweep));
  EXPECT_EQ(expansion.status(), absl::OkStatus());
  return *std::move(expansion);
}

std::string Refusal(const std::string& sweep) {
  return std::string(SweepExpansion::Of(Parsed(sweep)).status().message());
}

std::string ValuesText(const SweepExpansion& expansion, int index) {
  return ToJson(expansion.ValuesOf(index), JsonStyle::kCompact);
}

TEST(SweepTest, AGridIsEveryCombinationAndTheLastPathVariesFastest) {
  const SweepExpansion sweep = Expanded(R"(
sweep:
  grid: {seed: [1, 2], "optimizer.adamw.learning_rate": [0.1, 0.01, 1e-3]}
  max_parallel: 2
)");
  ASSERT_EQ(sweep.count(), 6);
  EXPECT_EQ(sweep.max_parallel(), 2);
  std::vector<std::string> points;
  for (int i = 0; i < 6; ++i) points.push_back(ValuesText(sweep, i));
  EXPECT_THAT(points, ElementsAre(R"({"optimizer.adamw.learning_rate": 0.1, "seed": 1})",
                                  R"({"optimizer.adamw.learning_rate": 0.1, "seed": 2})",
                                  R"({"optimizer.adamw.learning_rate": 0.01, "seed": 1})",
                                  R"({"optimizer.adamw.learning_rate": 0.01, "seed": 2})",
                                  R"({"optimizer.adamw.learning_rate": 0.001, "seed": 1})",
                                  R"({"optimizer.adamw.learning_rate": 0.001, "seed": 2})"));
  const v1::JobSpec spec = *sweep.SpecOf(3);
  EXPECT_EQ(spec.seed(), 2u);
  EXPECT_EQ(spec.optimizer().adamw().learning_rate(), 0.01);
  EXPECT_EQ(spec.model().layers_size(), 1);
  EXPECT_FALSE(spec.has_sweep());
}

// The same as `--set` with the value's text makes of the spec.
TEST(SweepTest, APointIsWhatSetMakes) {
  const SweepExpansion sweep = Expanded(R"(
sweep:
  list:
    - {precision.mode: BF16, train.batch_size: 64, "model.layers[0].dense.units": 5}
    - {optimizer: {sgd: {learning_rate: 0.5, nesterov: true}}, labels.team: "5", seed: "18446744073709551615"}
    - {precision.rules: [{match: head, dtype: FP32}], optimizer.adamw.learning_rate: null}
    - {}
)");
  const std::vector<std::vector<std::string>> sets = {
      {"precision.mode=BF16", "train.batch_size=64", "model.layers[0].dense.units=5"},
      {"optimizer={sgd: {learning_rate: 0.5, nesterov: true}}", "labels.team=\"5\"", "seed=18446744073709551615"},
      {"precision.rules=[{match: head, dtype: FP32}]", "optimizer.adamw.learning_rate=null"},
      {}};
  ASSERT_EQ(sweep.count(), 4);
  for (int i = 0; i < 4; ++i) {
    v1::JobSpec expected = Parsed("");
    for (const std::string& set : sets[i]) EXPECT_EQ(ApplySet(&expected, set), absl::OkStatus());
    const absl::StatusOr<v1::JobSpec> spec = sweep.SpecOf(i);
    ASSERT_EQ(spec.status(), absl::OkStatus());
    EXPECT_TRUE(MessageDifferencer::Equals(*spec, expected)) << spec->ShortDebugString();
  }
}

TEST(SweepTest, WhatAPointGivesTakesThePlaceOfWhatExcludesItInTheFile) {
  const SweepExpansion sweep = Expanded(R"(
train: {epochs: 2, eval_every_steps: 5}
sweep: {list: [{train.steps: 70}, {train.eval_every_epochs: 1, train.batch_size: 8}, {train.steps: 70, train.epochs: 3}]}
)");
  std::vector<std::string> points;
  for (int i = 0; i < sweep.count(); ++i) points.push_back(sweep.SpecOf(i)->train().ShortDebugString());
  EXPECT_THAT(points, ElementsAre("steps: 70 eval_every_steps: 5", "epochs: 2 batch_size: 8 eval_every_epochs: 1",
                                  "epochs: 3 steps: 70 eval_every_steps: 5"));
}

TEST(SweepTest, RefusesBadForms) {
  EXPECT_THAT(Refusal("sweep: {}"), HasSubstr("sweep: needs values: grid or list"));
  EXPECT_THAT(Refusal("sweep: {grid: {seed: [1]}, list: [{seed: 2}]}"), HasSubstr("both grid and list"));
  EXPECT_THAT(Refusal("sweep: {grid: {seed: []}}"), HasSubstr("sweep.grid.seed: needs a value"));
  EXPECT_THAT(Refusal("sweep: {grid: {seed: [1]}, max_parallel: 0}"),
              HasSubstr("sweep.max_parallel: must be at least 1"));
  std::string hundred = "[0";
  for (int i = 1; i < 100; ++i) hundred += ", " + std::to_string(i);
  hundred += "]";
  EXPECT_EQ(Expanded("sweep: {grid: {seed: " + hundred + ", train.steps: " + hundred + "}}").count(), 10000);
  EXPECT_THAT(Refusal("sweep: {grid: {seed: " + hundred + ", train.steps: " + hundred + ", name: [a, b]}}"),
              HasSubstr("sweep.grid: must have at most 10000 points"));
  // A product that would wrap around.
  std::string many = "sweep: {grid: {";
  for (int i = 0; i < 12; ++i) many += "labels.l" + std::to_string(i) + ": " + hundred + ", ";
  EXPECT_THAT(Refusal(many + "}}"), HasSubstr("at most 10000 points"));
}

TEST(SweepTest, ErrorsNameThePoint) {
  const SweepExpansion list =
      Expanded("sweep: {list: [{seed: 1}, {train.batch_sise: 3}, {sweep.max_parallel: 3}, {seed: x}]}");
  EXPECT_TRUE(list.SpecOf(0).ok());
  std::vector<FieldViolation> wrong = FieldViolationsOf(list.SpecOf(1).status());
  ASSERT_EQ(wrong.size(), 1u);
  EXPECT_EQ(wrong[0].field, "sweep.list[1].train.batch_sise");
  EXPECT_THAT(wrong[0].description, HasSubstr("did you mean batch_size?"));
  EXPECT_THAT(std::string(list.SpecOf(2).status().message()), HasSubstr("sweep.list[2].sweep.max_parallel: a point"));
  EXPECT_THAT(std::string(list.SpecOf(3).status().message()), HasSubstr("sweep.list[3].seed: expected an integer"));

  const SweepExpansion grid = Expanded("sweep: {grid: {seed: [1, 2], train.batch_size: [0]}}");
  const absl::Status resolved = ResolveJobSpec(*grid.SpecOf(1)).status();
  wrong = FieldViolationsOf(grid.InPoint(1, resolved));
  ASSERT_FALSE(wrong.empty());
  EXPECT_EQ(wrong[0].field, "sweep.grid[1].train.batch_size");
  EXPECT_THAT(wrong[0].description, HasSubstr(R"("seed": 2)"));
  EXPECT_EQ(grid.InPoint(0, absl::UnavailableError("gone")).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(grid.InPoint(0, absl::OkStatus()), absl::OkStatus());
}

TEST(SweepTest, ErrorsQuoteSomeOfLongValues) {
  // Of two bytes each, so that a bound may fall within one.
  std::string accents;
  for (int i = 0; i < 150; ++i) accents += "\u00e9";
  for (const char* before : {"", "a"}) {
    const SweepExpansion grid =
        Expanded("sweep: {grid: {train.batch_size: [x], labels.team: [\"" + (before + accents) + "\"]}}");
    const std::vector<FieldViolation> wrong = FieldViolationsOf(grid.SpecOf(0).status());
    ASSERT_EQ(wrong.size(), 1u) << before;
    EXPECT_EQ(wrong[0].field, "sweep.grid[0].train.batch_size");
    EXPECT_THAT(wrong[0].description, testing::ContainsRegex("\\.\\.\\. \\(1[0-9][0-9] more bytes\\)\\)$"));
    EXPECT_LT(wrong[0].description.size(), 350u);
  }
}

TEST(SweepTest, NumbersThatADoubleDoesNotHoldAreRefused) {
  v1::JobSpec spec;
  const absl::Status status = ParseYaml("sweep:\n  grid:\n    seed: [1, 9007199254740993]\n", "job.yaml", &spec);
  EXPECT_THAT(std::string(status.message()), HasSubstr("job.yaml:3: sweep.grid.seed[1]"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("in quotes"));
  const SweepExpansion quoted = Expanded("sweep: {grid: {seed: [\"9007199254740993\", 9007199254740992]}}");
  EXPECT_EQ(quoted.SpecOf(0)->seed(), 9007199254740993u);
  EXPECT_EQ(quoted.SpecOf(1)->seed(), 9007199254740992u);
  // A client may send what no job file says.
  v1::JobSpec sent = Parsed("");
  sent.mutable_sweep()->add_list()->mutable_fields()->insert({"name", google::protobuf::Value()});
  google::protobuf::Value infinite;
  infinite.set_number_value(std::numeric_limits<double>::infinity());
  sent.mutable_sweep()->add_list()->mutable_fields()->insert({"seed", infinite});
  const absl::StatusOr<SweepExpansion> hostile = SweepExpansion::Of(sent);
  ASSERT_TRUE(hostile.ok());
  EXPECT_THAT(std::string(hostile->SpecOf(0).status().message()), HasSubstr("has no value"));
  EXPECT_THAT(std::string(hostile->SpecOf(1).status().message()), HasSubstr("finite"));
}

TEST(SweepTest, YamlKnowsLinesAndKeysOfSweeps) {
  v1::JobSpec spec;
  FieldLines lines;
  ASSERT_EQ(
      ParseYaml("name: a\nsweep:\n  list:\n    - seed: 1\n    - {seed: 2,\n       name: b}\n", "f", &spec, &lines),
      absl::OkStatus());
  EXPECT_EQ(lines.LineOf("sweep.list[1].name"), 6);
  EXPECT_EQ(lines.LineOf("sweep.list[1].train.batch_size"), 5);
  EXPECT_THAT(std::string(ParseYaml("sweep: {list: [{seed: 1, seed: 2}]}", "f", &spec).message()),
              HasSubstr("duplicate key"));
  EXPECT_THAT(std::string(ParseYaml("sweep: {grid: {seed: 1}}", "f", &spec).message()), HasSubstr("expected a list"));
  EXPECT_THAT(std::string(ParseYaml("sweep: {list: [5]}", "f", &spec).message()), HasSubstr("expected a map"));
}

TEST(SweepTest, JsonAndYamlGiveASweepBack) {
  const v1::JobSpec spec =
      Parsed(R"(sweep: {list: [{a: [1, "5", true, null, {b: 1e30}], "odd \"key\"": -0.25}, {}], max_parallel: 3})");
  v1::JobSpec back;
  ASSERT_EQ(ParseYaml(ToYaml(spec), "f", &back), absl::OkStatus()) << ToYaml(spec);
  EXPECT_TRUE(MessageDifferencer::Equals(back, spec)) << ToYaml(spec);
  // Another reader of proto3's JSON.
  v1::JobSpec read;
  google::protobuf::util::JsonParseOptions options;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(ToJson(spec, JsonStyle::kPretty), &read, options).ok());
  EXPECT_TRUE(MessageDifferencer::Equals(read, spec)) << ToJson(spec, JsonStyle::kPretty);
  const v1::JobSpec grid = Parsed("sweep: {grid: {seed: [1, 2], name: [a]}}");
  ASSERT_EQ(ParseYaml(ToYaml(grid), "f", &back), absl::OkStatus()) << ToYaml(grid);
  EXPECT_TRUE(MessageDifferencer::Equals(back, grid)) << ToYaml(grid);
}

TEST(SweepTest, AJobHasNoSweep) {
  EXPECT_THAT(std::string(ResolveJobSpec(Parsed("sweep: {grid: {seed: [1]}}")).status().message()),
              HasSubstr("sweep: a job has none"));
}

}  // namespace
}  // namespace ampd
