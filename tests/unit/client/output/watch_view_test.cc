#include "client/output/watch_view.h"

#include <sstream>
#include <string>

#include "gtest/gtest.h"
#include "proto/spec/yaml.h"
#include "tests/unit/client/time_zone.h"

namespace ampd::client {
namespace {

v1::JobEvent Event(const std::string& text) {
  v1::JobEvent event;
  EXPECT_EQ(ParseYaml(text, "event", &event), absl::OkStatus());
  return event;
}

std::string Step(int sequence, int step, const std::string& time) {
  return "{sequence: " + std::to_string(sequence) + ", time: '2026-01-31T12:00:" + time +
         "Z', step: {last_step: " + std::to_string(step) + ", total_steps: 9, epoch: 1, phases: [{loss: 1}]}}";
}

class WatchViewTest : public testing::Test {
 protected:
  std::unique_ptr<WatchView> Make(Format format, bool terminal) {
    WatchViewOptions options;
    options.format = format;
    options.terminal = terminal;
    options.columns = [] { return 24; };
    options.err = &err_;
    return MakeWatchView(options, &out_);
  }

  void Feed(WatchView* view) {
    view->OnEvent(Event("{sequence: 1, time: '2026-01-31T12:00:00Z', state_change: {to: RUNNING}}"));
    view->OnEvent(Event(Step(2, 1, "01.0")));
    view->OnEvent(Event(Step(3, 2, "01.5")));
    view->OnLost(absl::UnavailableError("gone"));
    view->OnResumed();
    view->OnEvent(Event(Step(4, 3, "02.1")));
    view->OnEvent(Event(Step(5, 9, "02.2")));
    const v1::JobEvent end = Event("{sequence: 6, time: '2026-01-31T12:00:03Z', state_change: {to: SUCCEEDED}}");
    view->OnEvent(end);
    view->OnEnd(end.state_change());
  }

  const ScopedTimeZone zone_{"UTC"};
  std::ostringstream out_, err_;
};

TEST_F(WatchViewTest, PlainLinesShowAboutOneStepReportASecond) {
  Feed(Make(Format::kTable, false).get());
  EXPECT_EQ(out_.str(),
            "12:00:00  RUNNING\n"
            "12:00:01  step 1/9  epoch 1  loss 1  lr 0  scale 0  skips 0  0 samples/s\n"
            "12:00:02  step 3/9  epoch 1  loss 1  lr 0  scale 0  skips 0  0 samples/s\n"
            "12:00:02  step 9/9  epoch 1  loss 1  lr 0  scale 0  skips 0  0 samples/s\n"
            "SUCCEEDED loss=1 applied=0 skipped=0\n");
  EXPECT_EQ(err_.str(), "connection lost: gone; reconnecting\nreconnected\n");
}

TEST_F(WatchViewTest, PlainLinesShowTheLastStepReportOfAJobThatEndsAheadOfItsLength) {
  const auto view = Make(Format::kTable, false);
  view->OnEvent(Event(Step(1, 1, "01.0")));
  view->OnEvent(Event(Step(2, 2, "01.3")));
  view->OnEvent(Event(Step(3, 3, "01.5")));
  view->OnEvent(
      Event("{sequence: 4, time: '2026-01-31T12:00:01.8Z', checkpoint: {checkpoint: step-3, size_bytes: 5}}"));
  view->OnEvent(
      Event("{sequence: 5, time: '2026-01-31T12:00:02Z', state_change: {to: SUCCEEDED, reason: 'stopped early'}}"));
  EXPECT_EQ(out_.str(),
            "12:00:01  step 1/9  epoch 1  loss 1  lr 0  scale 0  skips 0  0 samples/s\n"
            "12:00:01  checkpoint step-3  5 B\n"
            "12:00:01  step 3/9  epoch 1  loss 1  lr 0  scale 0  skips 0  0 samples/s\n");
}

TEST_F(WatchViewTest, PlainLinesTellAPhaseThatDidNotRunFromALossThatIsNan) {
  const auto view = Make(Format::kTable, false);
  const auto step = [](int step, const std::string& second, int skipped) {
    const std::string number = std::to_string(step);
    return Event("{sequence: " + number + ", time: '2026-01-31T12:00:" + second + "Z', step: {first_step: " + number +
                 ", last_step: " + number + ", total_steps: 9, phases: [{name: gen, loss: NaN, steps_skipped: " +
                 std::to_string(skipped) + "}]}}");
  };
  view->OnEvent(step(1, "01", 0));
  // Not shown, and what the next one is held against.
  view->OnEvent(step(2, "01.5", 1));
  view->OnEvent(step(3, "03", 1));
  view->OnEvent(step(4, "05", 2));
  EXPECT_EQ(out_.str(),
            "12:00:01  step 1/9  epoch 0  gen loss -  lr 0  scale 0  skips 0  0 samples/s\n"
            "12:00:03  step 3/9  epoch 0  gen loss -  lr 0  scale 0  skips 1  0 samples/s\n"
            "12:00:05  step 4/9  epoch 0  gen loss nan  lr 0  scale 0  skips 2  0 samples/s\n");
}

TEST_F(WatchViewTest, PlainLinesRepeatNoStepReportAtTheEndNorOneThatWasTakenBack) {
  const std::string end = "{sequence: 9, time: '2026-01-31T12:00:09Z', state_change: {to: CANCELLED}}";
  const auto shown = Make(Format::kTable, false);
  shown->OnEvent(Event(Step(1, 1, "01.0")));
  shown->OnEvent(Event(Step(2, 2, "01.5")));
  shown->OnEvent(Event(Step(3, 3, "02.5")));
  shown->OnEvent(Event(end));
  const auto rewound = Make(Format::kTable, false);
  rewound->OnEvent(Event(Step(1, 4, "03.0")));
  rewound->OnEvent(Event(Step(2, 5, "03.5")));
  rewound->OnEvent(Event("{sequence: 3, time: '2026-01-31T12:00:04Z', rewound: {to_step: 4}}"));
  rewound->OnEvent(Event(end));
  EXPECT_EQ(out_.str(),
            "12:00:01  step 1/9  epoch 1  loss 1  lr 0  scale 0  skips 0  0 samples/s\n"
            "12:00:02  step 3/9  epoch 1  loss 1  lr 0  scale 0  skips 0  0 samples/s\n"
            "12:00:03  step 4/9  epoch 1  loss 1  lr 0  scale 0  skips 0  0 samples/s\n"
            "12:00:04  rewound to step 4\n");
}

TEST_F(WatchViewTest, JsonLinesAreEveryEventAndNothingElse) {
  Feed(Make(Format::kJsonl, true).get());
  std::istringstream lines(out_.str());
  std::string line;
  int sequence = 0;
  while (std::getline(lines, line)) {
    v1::JobEvent event;
    ASSERT_EQ(ParseYaml(line, "line", &event), absl::OkStatus());
    EXPECT_EQ(event.sequence(), ++sequence);
  }
  EXPECT_EQ(sequence, 6);
}

TEST_F(WatchViewTest, ATerminalHasOneLiveLineUnderScrollingEvents) {
  const auto view = Make(Format::kTable, true);
  Feed(view.get());
  const std::string text = out_.str();
  EXPECT_NE(text.find("\r\x1b[K12:00:00  RUNNING\n"), std::string::npos);
  EXPECT_NE(text.find("\r\x1b[Kconnection lost: gone; reconnecting\n"), std::string::npos);
  // What 23 columns hold of the progress line, and no newline after them.
  EXPECT_NE(text.find("\r\x1b[Kstep 2/9 22%  ETA 0:04\r"), std::string::npos) << text;
  EXPECT_EQ(text.find("step 1/9  epoch"), std::string::npos);
  EXPECT_TRUE(text.ends_with("\r\x1b[KSUCCEEDED loss=1 applied=0 skipped=0\n"));
}

}  // namespace
}  // namespace ampd::client
