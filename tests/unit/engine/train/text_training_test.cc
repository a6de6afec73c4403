// A language model in training: what it learns of a text, what it writes, and that a resume changes neither.
#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::Ge;
using testing::Gt;
using testing::HasSubstr;
using testing::Lt;
using testing::SizeIs;

// Twelve bytes, each of which says which one follows.
const std::string kCycle = "abcdefghijk\n";

const std::string kTinyGpt =
    "model { preset { gpt2 { layers: 1 heads: 2 features: 16 positions: 16 dropout: 0 } } }"
    "data { train { text { path: 'text' sequence_length: 16 stride: 5 } } }"
    "optimizer { adamw { learning_rate: 0.02 } } train { steps: 60 batch_size: 8 } report { every_steps: 1 } seed: 3";

class TextTraining : public testing::Test {
 protected:
  TextTraining() {
    std::string text;
    for (int i = 0; i < 100; ++i) text += kCycle;
    std::ofstream(folder_.path() + "/text", std::ios::binary) << text;
  }

  // The same cycle as numbers, the first of which are above a byte's.
  static int IdOf(char byte) { return 590 - 7 * (byte == '\n' ? 11 : byte - 'a'); }
  static std::string IdsOf(const std::string& bytes) {
    std::string ids;
    for (const char byte : bytes) ids += " " + std::to_string(IdOf(byte));
    return ids;
  }
  void WriteTokens() const {
    std::ofstream file(folder_.path() + "/tokens", std::ios::binary);
    for (int i = 0; i < 100; ++i) {
      for (const char byte : kCycle) file << static_cast<char>(IdOf(byte)) << static_cast<char>(IdOf(byte) >> 8);
    }
  }

  TrainerOptions OptionsFor(const std::string& run) const {
    TrainerOptions options = Options(folder_.path() + "/" + run);
    options.data_roots = {folder_.path()};
    return options;
  }

  static std::vector<v1::TextSample> SamplesOf(const Recorder& recorder) {
    std::vector<v1::TextSample> samples;
    for (const v1::JobEvent& event : recorder.events) {
      if (event.has_text_sample()) samples.push_back(event.text_sample());
    }
    return samples;
  }

  ScratchFolder folder_;
};

TEST_F(TextTraining, PlansSayThatEveryPositionHasALabel) {
  const v1::PlanResponse response = PlanJob(Spec({kTinyGpt}), {folder_.path()});
  ASSERT_EQ(response.errors_size(), 0) << response.DebugString();
  EXPECT_THAT(response.plan().label_shape(), ElementsAre(16));
  EXPECT_EQ(response.plan().target_features(), 0);
}

TEST_F(TextTraining, WritesWhatItLearnedPastItsContext) {
  const auto spec =
      Spec({kTinyGpt, "report { samples { every_steps: 40 text { prompt: 'cde' length: 45 temperature: 0 } } }"});
  Recorder recorder;
  const auto outcome = Train(spec, OptionsFor("run"), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_LT(recorder.losses().back(), 0.3);
  // After step 40, and at the end.
  const std::vector<v1::TextSample> samples = SamplesOf(recorder);
  ASSERT_THAT(samples, SizeIs(2));
  EXPECT_EQ(samples[0].step(), 40);
  EXPECT_EQ(samples[1].step(), 60);
  EXPECT_EQ(samples[1].prompt(), "cde");
  std::string expected = "fghijk\n";
  while (expected.size() < 45) expected += kCycle;
  EXPECT_EQ(samples[1].text(), expected.substr(0, 45));
}

// The network has more classes than there are tokens; none of those is drawn.
const std::string kOfTokens =
    "model { preset { gpt2 { vocabulary: 640 } } }"
    "data { train { tokens { path: 'tokens' sequence_length: 16 stride: 5 vocabulary: 600 } } }";

TEST_F(TextTraining, OfTokensItWritesTheirIds) {
  WriteTokens();
  const auto spec = Spec(
      {kTinyGpt, kOfTokens,
       "report { samples { every_steps: 60 text { prompt: '" + IdsOf("cde") + "' length: 45 temperature: 0 } } }"});
  Recorder recorder;
  const auto outcome = Train(spec, OptionsFor("run"), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_LT(recorder.losses().back(), 0.3);
  const std::vector<v1::TextSample> samples = SamplesOf(recorder);
  ASSERT_THAT(samples, SizeIs(1));
  std::string expected = "fghijk\n";
  while (expected.size() < 45) expected += kCycle;
  EXPECT_EQ(samples[0].prompt() + samples[0].text(), IdsOf("cde" + expected.substr(0, 45)));
}

// Of a network that knows nothing.
TEST_F(TextTraining, IdsAreBelowTheTokensVocabulary) {
  WriteTokens();
  const auto spec =
      Spec({kTinyGpt, kOfTokens, "train { steps: 1 } report { samples { text { length: 300 temperature: 1e6 } } }"});
  Recorder recorder;
  ASSERT_TRUE(Train(spec, OptionsFor("run"), &recorder).ok());
  const std::vector<v1::TextSample> samples = SamplesOf(recorder);
  ASSERT_THAT(samples, SizeIs(1));
  EXPECT_EQ(samples[0].prompt(), "0");
  std::istringstream text(samples[0].text());
  const std::vector<int> ids{std::istream_iterator<int>(text), std::istream_iterator<int>()};
  EXPECT_THAT(ids, SizeIs(300));
  EXPECT_THAT(ids, Each(AllOf(Ge(0), Lt(600))));
  EXPECT_THAT(ids, Contains(Gt(500)));
}

TEST_F(TextTraining, SamplesDoNotTouchTheTraining) {
  Recorder with, without;
  ASSERT_TRUE(
      Train(Spec({kTinyGpt, "report { samples { every_steps: 7 text { length: 20 } } }"}), OptionsFor("with"), &with)
          .ok());
  ASSERT_TRUE(Train(Spec({kTinyGpt}), OptionsFor("without"), &without).ok());
  EXPECT_THAT(SamplesOf(with), SizeIs(9));
  EXPECT_EQ(with.losses(), without.losses());
}

TEST_F(TextTraining, AResumeWritesTheSameText) {
  const auto spec =
      Spec({kTinyGpt,
            "train { steps: 12 } report { samples { every_steps: 4 text { length: 30 temperature: 1 top_k: 200 } } }"});
  Recorder whole, parts;
  ASSERT_TRUE(Train(spec, OptionsFor("whole"), &whole).ok());
  auto outcome = Train(spec, OptionsFor("parts"), &parts, 6);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_EQ(*outcome, Outcome::kStopped);
  TrainerOptions options = OptionsFor("parts");
  options.last_reported_step = 6;
  ASSERT_TRUE(Train(spec, options, &parts).ok());
  std::vector<std::string> texts, resumed;
  for (const v1::TextSample& sample : SamplesOf(whole)) texts.push_back(sample.text());
  for (const v1::TextSample& sample : SamplesOf(parts)) resumed.push_back(sample.text());
  ASSERT_THAT(texts, SizeIs(3));
  EXPECT_EQ(texts, resumed);
  EXPECT_NE(texts[0], texts[1]);
}

// Any byte may come of a network that knows nothing; an event holds UTF-8.
TEST_F(TextTraining, EveryByteCanBeShown) {
  const auto spec = Spec({kTinyGpt, "train { steps: 1 } report { samples { text { length: 600 temperature: 1e6 } } }"});
  Recorder recorder;
  ASSERT_TRUE(Train(spec, OptionsFor("run"), &recorder).ok());
  const std::vector<v1::TextSample> samples = SamplesOf(recorder);
  ASSERT_THAT(samples, SizeIs(1));
  EXPECT_THAT(samples[0].text(), HasSubstr("\xEF\xBF\xBD"));
  v1::TextSample parsed;
  EXPECT_TRUE(parsed.ParseFromString(samples[0].SerializeAsString()));
}

TEST_F(TextTraining, ModesOfFewBitsWriteToo) {
  for (const std::string mode : {"BF16", "FP16", "FP8"}) {
    Recorder recorder;
    const auto spec = Spec({kTinyGpt, "precision { mode: " + mode + " }",
                            "report { samples { every_steps: 60 text { prompt: 'abc' length: 9 temperature: 0 } } }"});
    const auto outcome = Train(spec, OptionsFor(mode), &recorder);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_LT(recorder.losses().back(), 0.5) << mode;
    ASSERT_THAT(SamplesOf(recorder), SizeIs(1));
    EXPECT_EQ(SamplesOf(recorder)[0].text(), "defghijk\n") << mode;
  }
}

TEST_F(TextTraining, AModelThatGivesNoBytesIsRefused) {
  const auto spec = Spec({kTinyGpt, "report { samples { text {} } }"});
  v1::JobSpec narrow = spec.proto();
  auto* layers = narrow.mutable_model()->mutable_layers();
  layers->Mutable(0)->mutable_embedding()->set_vocabulary(100);
  layers->Mutable(layers->size() - 1)->mutable_dense()->set_units(100);
  const auto resolved = ResolveJobSpec(narrow);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  Recorder recorder;
  const auto outcome = Train(*resolved, OptionsFor("run"), &recorder);
  EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("100"));
}

}  // namespace
}  // namespace ampd::train
