#include "client/analysis/histogram.h"

#include <cmath>

#include "gmock/gmock.h"
#include "tests/unit/client/analysis/example_events.h"

namespace ampd::client {
namespace {

using testing::HasSubstr;

// conv: 10 values at 2^-30, 30 at 2^-20; head: 60 at 2^-3. Scale 2^16.
Events Diagnostics() {
  return EventsOf({R"(
gradient_diagnostics:
  step: 100
  phase: main
  scale: 65536
  largest_safe_scale: 131072
  tensors:
    - {tensor: conv.grad, layer: conv, nonzero: 40, zeros: 5, first_exponent: -30,
       exponent_counts: [10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 30], flushed_unscaled: 0.25, flushed_scaled: 0,
       largest_safe_scale: 1048576}
    - {tensor: head.grad, layer: head, nonzero: 60, first_exponent: -3, exponent_counts: [60], flushed_unscaled: 0,
       flushed_scaled: 0, largest_safe_scale: 131072}
)"});
}

TEST(Histogram, AddsUpTheTensorsOfTheNewestEvent) {
  const auto h = HistogramOf(Diagnostics(), "", "");
  ASSERT_TRUE(h.ok()) << h.status();
  EXPECT_EQ(h->nonzero, 100);
  EXPECT_EQ(h->zeros, 5);
  EXPECT_EQ(h->counts.at(-30), 10);
  EXPECT_EQ(h->counts.at(-20), 30);
  EXPECT_EQ(h->counts.at(-3), 60);
  EXPECT_DOUBLE_EQ(h->flushed_unscaled, 0.1);
  EXPECT_EQ(h->worst, "conv.grad");
  EXPECT_EQ(h->largest_safe_scale, 131072);
}

TEST(Histogram, AGlobChoosesTensors) {
  const auto h = HistogramOf(Diagnostics(), "main", "conv*");
  ASSERT_TRUE(h.ok());
  EXPECT_EQ(h->tensors, 1);
  EXPECT_EQ(HistogramOf(Diagnostics(), "", "x?").status().message(),
            "no tensor matches 'x?'; there are conv.grad, head.grad");
  EXPECT_THAT(std::string(HistogramOf({}, "", "").status().message()), HasSubstr("diagnostics_every_steps"));
}

std::string TextOf(const Events& events, const std::string& glob) {
  return HistogramText(*HistogramOf(events, "", glob));
}

Events With(const std::string& diagnostics) {
  Events events = Diagnostics();
  events.push_back(EventsOf({"gradient_diagnostics: " + diagnostics})[0]);
  return events;
}

// A job has one loss scale: conv's gradients alone would stand 2^20.
TEST(Histogram, AScaleIsSuggestedForAllTensorsWhateverIsLookedAt) {
  EXPECT_EQ(HistogramOf(Diagnostics(), "main", "conv*")->largest_safe_scale, 131072);
  EXPECT_THAT(TextOf(Diagnostics(), "conv*"),
              HasSubstr("Of all the job's gradients in 1 step that were looked at, from 100 on, none overflows up to "
                        "scale 2^17; as a static scale 2^16 leaves them "
                        "room to double:\n  precision: {loss_scale: {kind: STATIC, init: 65536}}\n"));
}

TEST(Histogram, AScaleThatFlushesMostIsNotSuggested) {
  const std::string text =
      TextOf(With("{step: 200, phase: main, scale: 1, tensors: [{tensor: wide, nonzero: 100, first_exponent: -20, "
                  "exponent_counts: [100], largest_safe_scale: 0.0009765625}]}"),
             "");
  EXPECT_THAT(text, HasSubstr("No static scale holds the job's gradients: at 2^-11, which"));
  EXPECT_THAT(text, testing::Not(HasSubstr("kind: STATIC")));
}

TEST(Histogram, AScaleIsSuggestedForAllPhases) {
  const Events events = With(
      "{step: 100, phase: generator, scale: 1, tensors: [{tensor: g, nonzero: 1, exponent_counts: [1], "
      "largest_safe_scale: 1024}]}");
  EXPECT_EQ(HistogramOf(events, "main", "")->largest_safe_scale, 1024);
  // A scale has to hold for all steps: gradients that have become smaller say nothing of the first ones.
  Events later = events;
  later.push_back(
      EventsOf({"gradient_diagnostics: {step: 200, phase: generator, scale: 1, tensors: [{tensor: g, nonzero: "
                "1, exponent_counts: [1], largest_safe_scale: 2048}]}"})[0]);
  EXPECT_EQ(HistogramOf(later, "main", "")->largest_safe_scale, 1024);
  EXPECT_THAT(TextOf(later, ""), HasSubstr("in 2 steps that were looked at, from 100 on,"));
}

TEST(Histogram, AScaleThatOverflowedIsNotSafe) {
  Events events = Diagnostics();
  const auto skip = [&](const std::string& stage, const std::string& scale) {
    events.push_back(EventsOf({"overflow_skip: {step: 2, stage: " + stage + ", scale_before: " + scale + "}"})[0]);
    return HistogramOf(events, "", "")->largest_safe_scale;
  };
  EXPECT_EQ(skip("FORWARD", "1024"), 131072) << "no scale's doing";
  EXPECT_EQ(skip("GRADIENT", "1048576"), 131072);
  EXPECT_EQ(skip("GRADIENT", "65536"), 32768);
  EXPECT_EQ(skip("REDUCE", "4096"), 2048);
}

// An all-zero tensor is told as safe up to 2^126, the largest scale that there is.
TEST(Histogram, ZerosSayNothingOfAScale) {
  const std::string zeros =
      "{step: 200, phase: main, scale: 1, tensors: [{tensor: z, zeros: 9, largest_safe_scale: 8.507059173023462e37}";
  const Events only_zeros = EventsOf({"gradient_diagnostics: " + zeros + "]}"});
  EXPECT_THAT(TextOf(only_zeros, ""), HasSubstr("which scale would be safe is not known"));
  EXPECT_THAT(TextOf(only_zeros, ""), testing::Not(HasSubstr("STATIC")));
  const Events mixed = With(zeros + ", {tensor: g, nonzero: 1, exponent_counts: [1], largest_safe_scale: 512}]}");
  EXPECT_THAT(TextOf(mixed, "z"), HasSubstr("kind: STATIC, init: 256}"));
}

TEST(Histogram, NoScaleHelpsWhatIsNotFinite) {
  const Events events = With(
      "{step: 200, phase: main, scale: 1, tensors: [{tensor: bad, non_finite: 3}, {tensor: good, nonzero: 1, "
      "exponent_counts: [1], largest_safe_scale: 512}]}");
  for (const char* glob : {"", "good", "bad"}) {
    EXPECT_THAT(TextOf(events, glob), HasSubstr("Of all the job's gradients 3 values are not finite in fp32 either"));
    EXPECT_THAT(TextOf(events, glob), testing::Not(HasSubstr("STATIC")));
  }
}

// A power of two of any size is written in full: 1.1e+12 would be above half of what is safe.
TEST(Histogram, AScaleIsWrittenAsItIs) {
  const Events events =
      EventsOf({"gradient_diagnostics: {step: 200, phase: main, scale: 1, tensors: [{tensor: g, nonzero: 1, "
                "exponent_counts: [1], "
                "largest_safe_scale: 2199023255552}]}"});
  EXPECT_THAT(TextOf(events, ""), HasSubstr("init: 1099511627776}"));
}

// 2^-25 itself rounds to 0, what is above it to 2^-24; 2^-24 is the smallest subnormal, 2^-14 the smallest normal, and
// 65504 < 2^16 the largest.
TEST(Histogram, RangesAreFp16s) {
  EXPECT_EQ(RangeOf(-26), Fp16Range::kFlushed);
  EXPECT_EQ(RangeOf(-25), Fp16Range::kSubnormal);
  EXPECT_EQ(RangeOf(-15), Fp16Range::kSubnormal);
  EXPECT_EQ(RangeOf(-14), Fp16Range::kNormal);
  EXPECT_EQ(RangeOf(15), Fp16Range::kNormal);
  EXPECT_EQ(RangeOf(16), Fp16Range::kInfinite);
}

std::string RowOf(const std::string& text, const std::string& label) {
  const size_t at = text.find(label + "  ");
  return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
}

TEST(Histogram, BarsMoveByTheScale) {
  const std::string text = HistogramText(*HistogramOf(Diagnostics(), "", ""));
  // 60 values are the longest bar, 32 columns.
  EXPECT_THAT(RowOf(text, " 2^-3"), HasSubstr(std::string(32, '#')));
  EXPECT_THAT(RowOf(text, " 2^13"), HasSubstr(std::string(32, '#')));
  EXPECT_THAT(RowOf(text, "2^-20"), HasSubstr(std::string(16, '#')));
  // 10 at 2^-30, before; 2^-14 after.
  EXPECT_THAT(RowOf(text, "2^-30"), HasSubstr("#####"));
  EXPECT_THAT(RowOf(text, "2^-14"), HasSubstr("#####"));
  EXPECT_THAT(text, HasSubstr("fp16 flushes 10.0% of the values that are not 0 without a scale, 0.0% with 2^16"));
  EXPECT_THAT(text, HasSubstr("loss_scale: {kind: STATIC, init: 65536}"));
}

// Tails of a few values, dozens of powers of two long, are one row.
TEST(Histogram, AThinTailIsOneRow) {
  const std::string text = HistogramText(*HistogramOf(With(R"(
  phase: main
  scale: 65536
  tensors: [{tensor: t, nonzero: 1010, first_exponent: -60, flushed_unscaled: 0.5,
             exponent_counts: [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                               500, 0, 0, 0, 0, 0, 0, 0, 0, 0, 500]}]
)"),
                                                      "", ""));
  EXPECT_THAT(RowOf(text, "2^-30"), HasSubstr(std::string(32, '#')));
  EXPECT_EQ(RowOf(text, "2^-31"), "");
  EXPECT_THAT(RowOf(text, "  less"), HasSubstr("#"));
  // What is scaled stands 16 rows higher, in a column of its own.
  EXPECT_THAT(RowOf(text, "2^-14"), HasSubstr(std::string(32, '#')));
  // Few rows are not worth it.
  EXPECT_EQ(RowOf(HistogramText(*HistogramOf(Diagnostics(), "", "")), "  less"), "");
}

TEST(Histogram, HostileEventsAreDrawnAllTheSame) {
  v1::JobEvent event;
  v1::TensorDiagnostics* tensor = event.mutable_gradient_diagnostics()->add_tensors();
  tensor->set_tensor("</text><script>");
  tensor->set_first_exponent(INT32_MAX);
  tensor->add_exponent_counts(1);
  tensor->add_exponent_counts(-5);
  event.mutable_gradient_diagnostics()->set_scale(NAN);
  const auto h = HistogramOf({event}, "", "");
  ASSERT_TRUE(h.ok());
  EXPECT_FALSE(HistogramText(*h).empty());
  EXPECT_THAT(HistogramSvg(*h, "<script>&"), testing::Not(HasSubstr("<script>")));
}

}  // namespace
}  // namespace ampd::client
