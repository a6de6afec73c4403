#include "server/tensorboard/summaries.h"

#include <gmock/gmock.h>

#include <map>

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

v1::JobEvent EventAt(uint64_t sequence, double seconds) {
  v1::JobEvent event;
  event.set_first_sequence(sequence);
  event.set_sequence(sequence);
  event.mutable_time()->set_seconds(static_cast<int64_t>(seconds));
  event.mutable_time()->set_nanos(static_cast<int32_t>((seconds - static_cast<int64_t>(seconds)) * 1e9));
  return event;
}

v1::JobEvent StepAt(uint64_t sequence, double seconds, int64_t step) {
  v1::JobEvent event = EventAt(sequence, seconds);
  event.mutable_step()->set_last_step(step);
  v1::PhaseReport* phase = event.mutable_step()->add_phases();
  phase->set_name("main");
  phase->set_loss(static_cast<double>(step));
  return event;
}

// The least that says how large it is: nobody looks further.
std::string Png(int width, int height, char colour_type) {
  std::string png("\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16);
  for (const int side : {width, height}) {
    for (int shift = 24; shift >= 0; shift -= 8) png.push_back(static_cast<char>(side >> shift));
  }
  png += {8, colour_type, 0, 0, 0, 0, 0, 0, 0};
  return png;
}

class SummariesTest : public ::testing::Test {
 protected:
  Summaries Make() {
    v1::JobSpec spec;
    spec.set_name("the `job`");
    return Summaries(spec, [this](const std::string& name) -> absl::StatusOr<std::string> {
      const auto found = artifacts_.find(name);
      if (found == artifacts_.end()) return absl::NotFoundError(name);
      return found->second;
    });
  }
  std::map<std::string, std::string> artifacts_;
};

std::map<std::string, float> Scalars(const tensorboard::Event& event) {
  std::map<std::string, float> scalars;
  for (const auto& value : event.summary().value()) scalars[value.tag()] = value.simple_value();
  return scalars;
}

TEST_F(SummariesTest, TheFirstEventTellsTheSpec) {
  Summaries summaries = Make();
  const auto events = summaries.Of(EventAt(1, 100));
  ASSERT_THAT(events, SizeIs(1));
  const auto& value = events[0].summary().value(0);
  EXPECT_EQ(value.tag(), "job");
  EXPECT_EQ(value.metadata().plugin_data().plugin_name(), "text");
  EXPECT_THAT(value.tensor().string_val(0), HasSubstr("\"name\": \"the `job`\""));
  EXPECT_THAT(summaries.Of(EventAt(2, 100)), IsEmpty());
}

TEST_F(SummariesTest, StepReportsAreThinnedButTheLastIsKept) {
  Summaries summaries = Make();
  EXPECT_THAT(summaries.Of(StepAt(2, 100, 10)), SizeIs(1));
  EXPECT_THAT(summaries.Of(StepAt(3, 100.5, 15)), IsEmpty());
  EXPECT_THAT(summaries.Of(StepAt(4, 101, 20)), SizeIs(1));
  EXPECT_THAT(summaries.Of(StepAt(5, 101.25, 25)), IsEmpty());
  v1::JobEvent ended = EventAt(6, 101.5);
  ended.mutable_state_change()->set_to(v1::Job::SUCCEEDED);
  const auto events = summaries.Of(ended);
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].step(), 25);
  EXPECT_DOUBLE_EQ(events[0].wall_time(), 101.25);
  EXPECT_EQ(Scalars(events[0]).at("train/loss"), 25);
}

TEST_F(SummariesTest, PhasesHaveTagsOfTheirOwn) {
  v1::JobEvent event = StepAt(2, 100, 10);
  event.mutable_step()->mutable_phases(0)->set_name("generator");
  *event.mutable_step()->add_phases() = event.step().phases(0);
  event.mutable_step()->mutable_phases(1)->set_name("discriminator");
  event.mutable_step()->mutable_phases(1)->set_loss_scale(1024);
  const auto events = Make().Of(event);
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(Scalars(events[0]).at("train/generator/loss"), 10);
  EXPECT_EQ(Scalars(events[0]).at("train/discriminator/loss_scale"), 1024);
}

TEST_F(SummariesTest, EvaluationsGiveEveryMetric) {
  v1::JobEvent event = EventAt(2, 100);
  event.mutable_evaluation()->set_step(40);
  (*event.mutable_evaluation()->mutable_metrics())["accuracy"] = 0.75;
  (*event.mutable_evaluation()->mutable_metrics())["loss"] = 0.5;
  const auto events = Make().Of(event);
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].step(), 40);
  EXPECT_THAT(Scalars(events[0]), ElementsAre(Pair("eval/accuracy", 0.75f), Pair("eval/loss", 0.5f)));
}

TEST_F(SummariesTest, DiagnosticsGiveHistogramsOfExponents) {
  v1::JobEvent event = EventAt(2, 100);
  v1::TensorDiagnostics* tensor = event.mutable_gradient_diagnostics()->add_tensors();
  tensor->set_tensor("a.grad");
  tensor->set_nonzero(4);
  tensor->set_flushed_unscaled(0.25);
  tensor->set_first_exponent(-26);
  tensor->add_exponent_counts(1);
  tensor->add_exponent_counts(3);
  const auto events = Make().Of(event);
  ASSERT_THAT(events, SizeIs(1));
  const auto& histogram = events[0].summary().value(0).histo();
  EXPECT_EQ(events[0].summary().value(0).tag(), "gradient_exponents/a.grad");
  EXPECT_THAT(histogram.bucket_limit(), ElementsAre(-26, -25, -24));
  EXPECT_THAT(histogram.bucket(), ElementsAre(0, 1, 3));
  EXPECT_EQ(histogram.num(), 4);
  EXPECT_EQ(histogram.sum(), -26 - 3 * 25);
  EXPECT_EQ(Scalars(events[0]).at("gradients/flushed_unscaled"), 0.25f);
}

TEST_F(SummariesTest, PicturesOfASeriesStandUnderOneTag) {
  artifacts_["samples-000000500.png"] = Png(300, 20, 2);
  artifacts_["broken.png"] = "GIF89a, which is none of ours";
  v1::JobEvent event = EventAt(2, 100);
  event.mutable_artifact()->set_step(500);
  event.mutable_artifact()->set_name("samples-000000500.png");
  event.mutable_artifact()->set_content_type("image/png");
  Summaries summaries = Make();
  const auto events = summaries.Of(event);
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].step(), 500);
  const auto& value = events[0].summary().value(0);
  EXPECT_EQ(value.tag(), "samples");
  EXPECT_EQ(value.image().width(), 300);
  EXPECT_EQ(value.image().height(), 20);
  EXPECT_EQ(value.image().colorspace(), 3);
  EXPECT_EQ(value.image().encoded_image_string(), artifacts_["samples-000000500.png"]);
  for (const char* name : {"broken.png", "gone.png"}) {
    event.mutable_artifact()->set_name(name);
    EXPECT_THAT(summaries.Of(event), IsEmpty()) << name;
  }
}

TEST_F(SummariesTest, ARewindWithdrawsLaterSteps) {
  v1::JobEvent event = EventAt(2, 100);
  event.mutable_rewound()->set_to_step(30);
  const auto events = Make().Of(event);
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].step(), 31);
  EXPECT_EQ(events[0].session_log().status(), tensorboard::SessionLog::START);
}

TEST_F(SummariesTest, TextIsShownAsItIs) {
  v1::JobEvent event = EventAt(2, 100);
  event.mutable_text_sample()->set_prompt("``` # no heading\n");
  event.mutable_text_sample()->set_text("<b>");
  const auto events = Make().Of(event);
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].summary().value(0).tensor().string_val(0), "````\n``` # no heading\n<b>\n````");
}

}  // namespace
}  // namespace ampd
