#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/train/plan_report.h"
#include "proto/spec/device_models.h"
#include "tests/unit/engine/train/plan_examples.h"

namespace ampd::train {
namespace {

using v1::Advice;

// Of four widths the last two pay together alone: the head's product has both as contiguous extents.
constexpr char kWords[] = R"(
model:
  layers:
    - {name: words, embedding: {vocabulary: 30000, features: 509}}
    - {name: rnn, lstm: {units: 333}}
    - {name: hidden, dense: {units: 1021}}
    - {name: head, dense: {units: 50257}}
  loss: {softmax_cross_entropy: {}}
data: {train: {glyphs: {}}}
precision: {mode: TF32}
optimizer: {adamw: {}}
train: {batch_size: 32}
)";
constexpr char kWordsWidth[] = "model.layers[0].embedding.features=512", kRnnWidth[] = "model.layers[1].lstm.units=336",
               kHiddenWidth[] = "model.layers[2].dense.units=1024", kHeadWidth[] = "model.layers[3].dense.units=50260";

const models::SampleInfo kSentences{.input_shape = {16}, .classes = 50257, .label_shape = {16}};

v1::DeviceModel A100() {
  v1::DeviceModel model = Model("A100-SXM-80GB");
  // No batch is looked for that fills it.
  model.set_memory_bytes(0);
  return model;
}

v1::PlanReport Report(const v1::JobSpec& spec, const models::SampleInfo& sample) {
  const auto report = MakePlanReport(Resolved(spec), sample, A100(), {v1::PrecisionSpec::TF32});
  EXPECT_TRUE(report.ok()) << report.status();
  return *report;
}

double Floor(const v1::JobSpec& spec, const models::SampleInfo& sample = kSentences) {
  const v1::DeviceModel model = A100();
  const DevicePlanner planner(sample, &model);
  const ResolvedJobSpec resolved = Resolved(spec);
  const auto planned = planner.Plan(resolved);
  EXPECT_TRUE(planned.ok()) << planned.status();
  return planner.Costs(resolved, *planned).seconds;
}

double FloorOfWords(const std::vector<std::string>& sets) { return Floor(Spec(kWords, sets)); }

// Of widths, not of the batch.
std::vector<Advice> AlignmentOf(const v1::PlanReport& report) {
  std::vector<Advice> alignment;
  for (const Advice& advice : report.advice()) {
    const bool kind = advice.kind() == Advice::ALIGN || advice.kind() == Advice::PAD_VOCABULARY;
    if (kind && advice.field() != "train.batch_size") alignment.push_back(advice);
  }
  return alignment;
}

TEST(PlanAlignment, WidthsThatPayOnlyTogetherAreAdvisedTogether) {
  const double before = FloorOfWords({}), both = FloorOfWords({kHiddenWidth, kHeadWidth});
  ASSERT_LT(both, before / 2);
  for (const char* width : {kHiddenWidth, kHeadWidth}) ASSERT_GT(FloorOfWords({width}), before / 1.005) << width;
  const std::vector<Advice> alignment = AlignmentOf(Report(Spec(kWords), kSentences));
  ASSERT_FALSE(alignment.empty());
  const Advice& together = alignment[0];
  EXPECT_EQ(together.kind(), Advice::ALIGN);
  EXPECT_EQ(together.field() + together.value() + together.layer(), "");
  EXPECT_TRUE(absl::StrContains(together.text(), "hidden 1021 -> 1024; head 50257 -> 50260: together"))
      << together.text();
  // Its figures are those of the job that follows it.
  std::vector<std::string> followed = {kHiddenWidth, kHeadWidth};
  if (absl::StrContains(together.text(), "words 509 -> 512")) followed.push_back(kWordsWidth);
  if (absl::StrContains(together.text(), "rnn 333 -> 336")) followed.push_back(kRnnWidth);
  const std::string gain = absl::StrCat("falls from ", absl::StrFormat("%.3g", before * 1e3), " ms to ",
                                        absl::StrFormat("%.3g", FloorOfWords(followed) * 1e3), " ms");
  EXPECT_TRUE(absl::StrContains(together.text(), gain)) << together.text() << "; expected " << gain;
  for (size_t i = 1; i < alignment.size(); ++i) {
    EXPECT_FALSE(absl::StrContains(alignment[i].text(), "together")) << alignment[i].text();
  }
}

// Narrow layers behind one another beside wide ones: each brings less than what counts, all of them do.
TEST(PlanAlignment, ManyWidthsThatBringLittleAreAdvisedAsOne) {
  int counts = 0;
  for (const int wide : {512, 1024, 2048}) {
    SCOPED_TRACE(wide);
    std::string layers;
    for (int i = 0; i < 8; ++i) absl::StrAppend(&layers, "    - {name: n", i, ", dense: {units: ", 129 + 2 * i, "}}\n");
    const std::string yaml =
        absl::StrCat("model:\n  layers:\n    - {name: words, embedding: {vocabulary: 512, features: ", wide, "}}\n",
                     layers, "    - {name: w0, dense: {units: ", wide, "}}\n    - {name: w1, dense: {units: ", wide,
                     "}}\n    - {name: w2, dense: {units: ", wide, "}}\n    - {name: head, dense: {units: 512}}\n",
                     "  loss: {softmax_cross_entropy: {}}\ndata: {train: {glyphs: {}}}\nprecision: {mode: TF32}\n"
                     "optimizer: {adamw: {}}\ntrain: {batch_size: 32}\n");
    const models::SampleInfo sample{.input_shape = {16}, .classes = 512, .label_shape = {16}};
    std::vector<std::string> all;
    for (int i = 0; i < 8; ++i) {
      all.push_back(absl::StrCat("model.layers[", i + 1, "].dense.units=", (129 + 2 * i + 3) / 4 * 4));
    }
    const double before = Floor(Spec(yaml), sample), after = Floor(Spec(yaml, all), sample);
    const std::vector<Advice> alignment = AlignmentOf(Report(Spec(yaml), sample));
    if (before / after < 1.006) continue;
    ++counts;
    ASSERT_FALSE(alignment.empty()) << before / after;
    // What is told is as good as all of them, but for what does not count.
    double told = before;
    for (const Advice& advice : alignment) {
      std::vector<std::string> sets;
      for (int i = 0; i < 8; ++i) {
        const bool named = absl::StrContains(advice.text(), absl::StrCat("n", i, " ")) ||
                           absl::StrContains(advice.text(), absl::StrCat("n", i, ":")) ||
                           absl::StrContains(advice.text(), absl::StrCat("n", i, ","));
        if (named) sets.push_back(all[static_cast<size_t>(i)]);
      }
      told = std::min(told, Floor(Spec(yaml, sets), sample));
    }
    EXPECT_LT(told, before / 1.004);
    EXPECT_LT(told, after * 1.006);
  }
  EXPECT_GT(counts, 0);
}

TEST(PlanAlignment, FollowedUntilNothingIsMisaligned) {
  const v1::JobSpec spec = Spec(kWords, {kWordsWidth, kRnnWidth, kHiddenWidth, kHeadWidth});
  const v1::PlanReport report = Report(spec, kSentences);
  for (const Advice& advice : AlignmentOf(report)) ADD_FAILURE() << advice.text();
  for (const char* layer : {"rnn", "hidden", "head"}) EXPECT_TRUE(Layer(report, layer).tensor_core_eligible()) << layer;
  // Nothing else would: without any one of them the step takes longer.
  const std::vector<std::string> all = {kWordsWidth, kRnnWidth, kHiddenWidth, kHeadWidth};
  for (size_t without = 0; without < all.size(); ++without) {
    std::vector<std::string> sets = all;
    sets.erase(sets.begin() + static_cast<ptrdiff_t>(without));
    EXPECT_GT(FloorOfWords(sets), FloorOfWords(all)) << all[without];
  }
}

// FP32's floor is no higher while nothing is eligible.
TEST(PlanAlignment, AModeThatPaysOnceWidthsAreAlignedIsNotGivenUp) {
  const v1::PlanReport report = Report(Spec(kWords), kSentences);
  ASSERT_LT(Mode(report, v1::PrecisionSpec::TF32).speed_up(), 1.05);
  for (const Advice& advice : report.advice()) EXPECT_NE(advice.kind(), Advice::MODE) << advice.text();
}

// The same of a preset, whose widths several layers share and heads have to divide.
TEST(PlanAlignment, SharedWidthsOfAPreset) {
  const v1::JobSpec spec = Spec(R"(
model: {preset: {gpt2: {features: 255, heads: 5, layers: 2, positions: 64}}}
data: {train: {glyphs: {}}}
precision: {mode: TF32}
optimizer: {adamw: {}}
train: {batch_size: 16}
)");
  const models::SampleInfo sample{.input_shape = {64}, .classes = 50257, .label_shape = {64}};
  const v1::PlanReport report = Report(spec, sample);
  const std::vector<Advice> alignment = AlignmentOf(report);
  ASSERT_FALSE(alignment.empty());
  EXPECT_TRUE(absl::StrContains(alignment[0].text(), " 255 -> 260")) << alignment[0].text();
  EXPECT_TRUE(absl::StrContains(alignment[0].text(), " 50257 -> 50260: together")) << alignment[0].text();
  EXPECT_EQ(alignment[0].field(), "");
  EXPECT_EQ(Layer(report, "h.0.attn").tensor_core_reason(),
            "K = 255, N = 765, head size = 51, value size = 51 are no multiples of 4");
  v1::JobSpec followed = spec;
  for (const char* set : {"model.preset.gpt2.features=260", "model.preset.gpt2.vocabulary=50260"}) {
    ASSERT_EQ(ApplySet(&followed, set), absl::OkStatus());
  }
  EXPECT_LT(Floor(followed, sample), Floor(spec, sample) / 1.5);
  for (const Advice& advice : AlignmentOf(Report(followed, sample))) ADD_FAILURE() << advice.text();
}

TEST(PlanAlignment, EveryExtentThatKeepsALayerAwayIsNamed) {
  const v1::PlanReport report = Report(Spec(kWords), kSentences);
  EXPECT_EQ(Layer(report, "hidden").tensor_core_reason(), "K = 333, N = 1021 are no multiples of 4");
  EXPECT_EQ(Layer(report, "head").tensor_core_reason(), "K = 1021, N = 50257 are no multiples of 4");
  EXPECT_EQ(Layer(Report(Spec(kWords, {kHiddenWidth}), kSentences), "head").tensor_core_reason(),
            "N = 50257 is no multiple of 4");
}

}  // namespace
}  // namespace ampd::train
