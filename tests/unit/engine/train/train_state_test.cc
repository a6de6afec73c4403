#include "engine/train/train_state.h"

#include <cmath>
#include <random>
#include <string>

#include "absl/strings/str_join.h"
#include "engine/core/json.h"
#include "engine/train/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd::train {
namespace {

using testing::HasSubstr;

TrainState Example() {
  TrainState state;
  state.step = 123456789012;
  state.seed = UINT64_MAX;
  state.spec_hash = std::string(64, 'a');
  state.spec = "{\"model\": \"é\\n\"}";
  PhaseState phase;
  phase.name = "main \"x\"";
  phase.scaler = {.scale = 0.1f,
                  .good_steps = 17,
                  .hysteresis_left = 2,
                  .steps_applied = 1000,
                  .steps_skipped = 3,
                  .last_overflow_step = 990,
                  .rollbacks = 2,
                  .fell_back = true};
  phase.skips = {.consecutive = 4, .recent = {980, 985, 990}};
  phase.loss = 0.1 + 1e-16;
  state.phases = {phase, PhaseState{"second", {}, {}}};
  return state;
}

TEST(TrainState, ComesBackExactly) {
  const auto back = TrainStateFromJson(ToJson(Example()));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, Example());
}

TEST(TrainState, TellsWhenItStops) {
  TrainState state = Example();
  state.stopping = StoppingState{.best_step = 40, .best_metric = 0.1 + 1e-16, .step = 70, .waited = 3, .applied = 65};
  auto back = TrainStateFromJson(ToJson(state));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, state);
  state.stopping = StoppingState{.best_metric = std::nan(""), .step = 10, .waited = 1};
  back = TrainStateFromJson(ToJson(state));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(std::isnan(back->stopping->best_metric));
  EXPECT_EQ(back->stopping->waited, 1);
}

TEST(TrainState, TellsOfTheInputs) {
  TrainState state = Example();
  state.onnx_sha256 = std::string(64, 'b');
  state.input = {{123.675, 0.1}, {58.395, 1}, {"dog \"x\"", "fish"}, 1234567890123};
  const std::string json = ToJson(state);
  const auto document = ParseJson(json);
  ASSERT_TRUE(document.ok()) << document.status();
  const Json* input = document->Find("input");
  ASSERT_NE(input, nullptr);
  EXPECT_EQ(*input->Find("mean")->items()[0].AsFloat(), 123.675f);
  EXPECT_EQ(*input->Find("std")->items()[1].AsFloat(), 1.0f);
  EXPECT_EQ(*input->Find("classes")->items()[0].AsString(), "dog \"x\"");
  EXPECT_THAT(json, HasSubstr("0.10000000000000001"));
  const auto back = TrainStateFromJson(json);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, state);
  state.input.length_buckets = {8, 24};
  const auto sequences = TrainStateFromJson(ToJson(state));
  ASSERT_TRUE(sequences.ok()) << sequences.status();
  EXPECT_EQ(*sequences, state);
  state.input.length_buckets = {};
  // As earlier builds wrote it.
  std::string older = json;
  const size_t samples = older.find(",\n            \"samples\"");
  older.erase(samples, older.find('}', samples) - samples);
  const auto old = TrainStateFromJson(older);
  ASSERT_TRUE(old.ok()) << old.status() << older;
  state.input.samples = 0;
  EXPECT_EQ(*old, state);
}

TEST(TrainState, ComparesTheInputsWithWhatTheyWere) {
  const InputNotes before = {{10, 20}, {1, 2}, {"a", "b"}, 12};
  const auto lines = [&](const InputNotes& now) {
    const auto compared = CompareInputs(before, now);
    return compared.ok() ? absl::StrJoin(*compared, "|") : std::string(compared.status().message());
  };
  EXPECT_EQ(lines(before), "");
  EXPECT_EQ(lines({{10 + 1e-12, 20}, {1, 2}, {"a", "b"}, 12}), "");
  EXPECT_THAT(lines({{10, 20}, {1, 2}, {"a", "b"}, 13}), HasSubstr("has 13 samples; it had 12"));
  EXPECT_THAT(lines({{10, 20}, {1, 2.001}, {"a", "b"}, 12}), HasSubstr("mean or deviation"));
  EXPECT_THAT(lines({{10}, {1}, {"a", "b"}, 12}), HasSubstr("mean or deviation"));
  for (const InputNotes& now :
       {InputNotes{{10, 20}, {1, 2}, {"b", "z"}, 12}, InputNotes{{10, 20}, {1, 2}, {"b"}, 12}}) {
    EXPECT_THAT(lines(now), HasSubstr("class 0 was 'a' when the checkpoint was written and is 'b' now"));
    EXPECT_EQ(FailureOf(CompareInputs(before, now).status()).class_(), v1::Failure::DATA);
  }
  EXPECT_THAT(lines({{10, 20}, {1, 2}, {"a", "b", "c"}, 12}), HasSubstr("class 2 was none"));
  // Names that begin alike, and one that is called as a missing one is.
  const std::string longest(100, 'n');
  const auto long_names = CompareInputs({{1}, {1}, {longest + "a"}, 12}, {{1}, {1}, {longest + "b"}, 12});
  EXPECT_THAT(std::string(long_names.status().message()), HasSubstr("is another that begins alike now"));
  EXPECT_FALSE(CompareInputs({{1}, {1}, {"a", "none"}, 12}, {{1}, {1}, {"a"}, 12}).ok());
  const InputNotes sequences = {{1}, {1}, {}, 12, {8, 24}};
  EXPECT_THAT(CompareInputs(sequences, {{1}, {1}, {}, 12, {16, 32}})->at(0),
              HasSubstr("data.length_buckets: sequences are padded to 16, 32 steps; it was to 8, 24"));
  EXPECT_TRUE(CompareInputs(sequences, sequences)->empty());
  EXPECT_TRUE(CompareInputs({{1}, {1}, {}, 12}, sequences)->empty());
  // What an earlier build did not write says nothing.
  EXPECT_TRUE(CompareInputs({}, before)->empty());
}

TEST(TrainState, EveryScaleComesBackBitForBit) {
  std::mt19937 random(5);
  TrainState state = Example();
  for (int i = 0; i < 2000; ++i) {
    state.phases[0].scaler.scale =
        std::ldexp(1.0f + static_cast<float>(random() % (1 << 23)) * 0x1p-23f, static_cast<int>(random() % 252) - 126);
    const auto back = TrainStateFromJson(ToJson(state));
    ASSERT_TRUE(back.ok()) << back.status();
    ASSERT_EQ(back->phases[0].scaler.scale, state.phases[0].scaler.scale);
  }
}

TEST(TrainState, RefusesAnotherVersion) {
  std::string json = ToJson(Example());
  json.replace(json.find(": 3,"), 4, ": 4,");
  const absl::Status status = TrainStateFromJson(json).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("format 4"));
}

// As the version before wrote it.
TEST(TrainState, ReadsTheVersionBefore) {
  const auto state = TrainStateFromJson(R"({
  "format_version": 2, "step": 70, "seed": 3, "spec_hash": "ab",
  "phases": [
    {"name": "main",
     "loss_scaler": {"scale": 65536, "good_steps": 17, "hysteresis_left": 1, "steps_applied": 60,
                     "steps_skipped": 10, "last_overflow_step": 53, "rollbacks": 1, "fell_back": false},
     "skips": {"consecutive": 0, "recent": []}}
  ]
})");
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->phases[0].scaler.last_overflow_step, 53);
  EXPECT_EQ(state->phases[0].scaler.rollbacks, 1);
  EXPECT_EQ(state->spec, "");
  EXPECT_FALSE(state->phases[0].scaler.fell_back);
}

TEST(TrainState, NamesTheFieldThatIsWrong) {
  for (const char* field : {"step", "seed", "spec_hash", "spec", "phases", "scale", "good_steps", "recent", "name",
                            "rollbacks", "fell_back"}) {
    std::string json = ToJson(Example());
    const size_t at = json.find(std::string("\"") + field + "\":");
    ASSERT_NE(at, std::string::npos) << field;
    json[at + 1] = '_';
    const absl::Status status = TrainStateFromJson(json).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
  }
}

TEST(TrainState, NoMutationCrashes) {
  std::mt19937 random(9);
  const std::string good = ToJson(Example());
  for (int round = 0; round < 5000; ++round) {
    std::string json = good;
    for (int edits = 0; edits < 3; ++edits) json[random() % json.size()] = static_cast<char>(random());
    TrainStateFromJson(json).IgnoreError();
    TrainStateFromJson(absl::string_view(good).substr(0, random() % good.size())).IgnoreError();
  }
}

}  // namespace
}  // namespace ampd::train
