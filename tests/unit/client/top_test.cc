// What `top` draws, line by line.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/top/keys.h"
#include "client/top/screen.h"
#include "client/top/sparkline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/time_zone.h"

namespace ampd::client {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(SparklineTest, GoesFromTheLowestToTheHighest) {
  EXPECT_EQ(Sparkline({0, 1, 2, 3, 4, 5, 6, 7}, 8, false), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(Sparkline({7, 0}, 8, true), "#_");
  EXPECT_EQ(Sparkline({5, 5, 5}, 8, true), "===");
  EXPECT_EQ(Sparkline({1, kNan, 2, INFINITY}, 8, true), "_x#x");
  EXPECT_EQ(Sparkline({-1e308, 1e308}, 8, true), "_#");
  EXPECT_EQ(Sparkline({}, 8, false), "");
  EXPECT_EQ(Sparkline({1}, 0, false), "");
}

TEST(SparklineTest, ManyValuesAreMeans) {
  // Means 0.5, 2.5, 4.5, 6.5.
  EXPECT_EQ(Sparkline({0, 1, 2, 3, 4, 5, 6, 7}, 4, false), "▁▃▆█");
  // Of those that are finite.
  EXPECT_EQ(Sparkline({kNan, 0, kNan, kNan, 1, 1}, 3, true), "_x#");
}

TEST(BarTest, IsClamped) {
  EXPECT_EQ(Bar(0.5, 10), "[####    ]");
  EXPECT_EQ(Bar(7, 6), "[####]");
  EXPECT_EQ(Bar(kNan, 6), "[    ]");
}

TEST(TakeKeysTest, KeysThatComeTogetherAreSeveral) {
  std::string sent = "jq\x1b[A\x1bOB\x1b[6~k\x1bq";
  EXPECT_THAT(TakeKeys(&sent), ElementsAre("j", "q", "\x1b[A", "\x1bOB", "\x1b[6~", "k", "\x1b", "q"));
  EXPECT_EQ(sent, "");
}

TEST(TakeKeysTest, APartOfASequenceStays) {
  for (const std::string key : {"\x1b[1;5B", "\x1bOA"}) {
    for (size_t part = 1; part < key.size(); ++part) {
      std::string sent = "j" + key.substr(0, part);
      EXPECT_THAT(TakeKeys(&sent), ElementsAre("j"));
      sent += key.substr(part) + "k";
      EXPECT_THAT(TakeKeys(&sent), ElementsAre(key, "k"));
    }
  }
}

v1::JobEvent Step(uint64_t sequence, int64_t step, double loss, double scale, int64_t skipped) {
  v1::JobEvent event;
  event.set_first_sequence(sequence);
  event.set_sequence(sequence);
  event.mutable_time()->set_seconds(static_cast<int64_t>(1769860800 + sequence));
  event.mutable_step()->set_first_step(step);
  event.mutable_step()->set_last_step(step);
  event.mutable_step()->set_total_steps(100);
  event.mutable_step()->set_samples_per_second(1000.0 * static_cast<double>(step));
  v1::PhaseReport* phase = event.mutable_step()->add_phases();
  phase->set_loss(loss);
  phase->set_loss_scale(scale);
  phase->set_steps_skipped(skipped);
  return event;
}

TEST(TopHistoryTest, KeepsPointsAndGoesBackWithTheJob) {
  TopHistory history;
  for (int i = 1; i <= 5; ++i) history.Observe(Step(static_cast<uint64_t>(i), i, 10.0 / i, 1024, i >= 4 ? 1 : 0));
  // Seen already.
  history.Observe(Step(3, 3, 99, 99, 0));
  ASSERT_EQ(history.points().size(), 5);
  EXPECT_TRUE(history.points()[3].skipped);
  EXPECT_FALSE(history.points()[4].skipped);
  v1::JobEvent rewound;
  rewound.set_sequence(6);
  rewound.mutable_rewound()->set_to_step(2);
  history.Observe(rewound);
  EXPECT_EQ(history.points().size(), 2);
  EXPECT_THAT(history.notes().back(), HasSubstr("rewound to step 2"));
  EXPECT_EQ(history.sequence(), 6);
  for (int i = 0; i < 10000; ++i) history.Observe(Step(7 + static_cast<uint64_t>(i), 3 + i, 1, 1, 1));
  EXPECT_EQ(history.points().size(), 4096);
}

TEST(TopHistoryTest, ThePhaseThatTookNoStepKeepsItsLoss) {
  TopHistory history;
  v1::JobEvent event = Step(1, 1, 0.5, 1, 0);
  event.mutable_step()->mutable_phases(0)->set_steps_applied(1);
  history.Observe(event);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  event = Step(2, 2, nan, 1, 0);
  event.mutable_step()->mutable_phases(0)->set_steps_applied(1);
  history.Observe(event);
  EXPECT_EQ(history.points().back().loss, 0.5);
  // It took one, whose loss was not finite.
  event = Step(3, 3, nan, 1, 0);
  event.mutable_step()->mutable_phases(0)->set_steps_applied(2);
  history.Observe(event);
  EXPECT_TRUE(std::isnan(history.points().back().loss));
}

v1::Job MakeJob(const std::string& id, v1::Job::State state, const std::string& name) {
  v1::Job job;
  job.set_id(id);
  job.set_state(state);
  job.mutable_spec()->set_name(name);
  return job;
}

class TopScreenTest : public testing::Test {
 protected:
  void SetUp() override {
    state_.address = "127.0.0.1:7070";
    state_.time = absl::FromUnixSeconds(1769860801);
    state_.answered = true;
    state_.server.set_version("0.1.0");
    for (int i = 0; i < 2; ++i) {
      v1::Device& device = state_.devices.emplace_back();
      device.set_id(absl::StrCat("cpu-", i));
      device.set_name("Processor");
      device.set_utilization(0.5);
      device.set_memory_total_bytes(int64_t{8} << 30);
      device.set_memory_used_bytes(int64_t{3} << 30);
    }
    state_.devices[0].set_job_id("01aaaaaaaa1");
    v1::Job running = MakeJob("01aaaaaaaa1", v1::Job::RUNNING, "resnet");
    running.mutable_summary()->set_step(40);
    running.mutable_summary()->set_total_steps(100);
    running.mutable_summary()->set_loss(0.25);
    running.mutable_summary()->set_loss_scale(65536);
    running.mutable_summary()->set_samples_per_second(9100);
    state_.jobs = {MakeJob("01bbbbbbbb1", v1::Job::SUCCEEDED, "old"), MakeJob("01cccccccc2", v1::Job::QUEUED, "second"),
                   MakeJob("01cccccccc1", v1::Job::QUEUED, "first"), running};
    state_.jobs[1].set_queue_position(2);
    state_.jobs[2].set_queue_position(1);
    SortJobs(&state_.jobs);
    TopHistory& history = state_.histories["01aaaaaaaa1"];
    for (int i = 1; i <= 40; ++i) {
      history.Observe(Step(static_cast<uint64_t>(i), i, 10.0 / i, i < 20 ? 32768 : 65536, 0));
    }
  }

  std::string Draw() const { return absl::StrJoin(TopScreen(state_, view_), "\n"); }

  const ScopedTimeZone zone_{"UTC"};
  TopState state_;
  TopView view_;
};

TEST_F(TopScreenTest, TimesAreLocal) {
  const ScopedTimeZone zone("IST-5:30");
  EXPECT_THAT(TopScreen(state_, view_)[0], testing::EndsWith("1/2 devices  17:30:01 IST"));
}

TEST_F(TopScreenTest, ShowsEverythingAt80By24) {
  const std::vector<std::string> lines = TopScreen(state_, view_);
  EXPECT_EQ(lines.size(), 24);
  EXPECT_EQ(lines[0], "ampd 0.1.0 at 127.0.0.1:7070      1 running, 2 queued, 1/2 devices  12:00:01 UTC");
  EXPECT_THAT(lines[2], HasSubstr("cpu-0     Processor        [####    ]  50% 3.0 GiB/8.0 GiB"));
  EXPECT_THAT(lines[2], HasSubstr("resnet"));
  EXPECT_THAT(lines[3], HasSubstr("free"));
  EXPECT_EQ(lines[5], ">01aaaaaaaa resnet   RUNNING          40/100     0.25 65.5k     0   9.1k    1:00");
  EXPECT_THAT(lines[6], HasSubstr("first"));
  EXPECT_THAT(lines[7], HasSubstr("second"));
  EXPECT_THAT(lines[8], HasSubstr("old"));
  const std::string all = Draw();
  EXPECT_THAT(all, testing::ContainsRegex("loss +0.25  █▄▃"));
  EXPECT_THAT(all, HasSubstr("0.25 to 10"));
  EXPECT_THAT(all, HasSubstr("32.8k to 65.5k"));
  EXPECT_THAT(all, testing::ContainsRegex("samples/s +40.0k  ▁▁▁"));
  EXPECT_THAT(lines.back(), HasSubstr("q quit"));
  EXPECT_THAT(all, Not(HasSubstr("\x1b")));
}

TEST_F(TopScreenTest, FitsEverySize) {
  for (int i = 0; i < 300; ++i) state_.jobs.push_back(MakeJob(absl::StrCat("01d", i), v1::Job::QUEUED, "many\x1b[2J"));
  for (int i = 0; i < 30; ++i) state_.devices.push_back(state_.devices[1]);
  for (const bool lost : {false, true}) {
    if (lost) state_.lost = absl::UnavailableError("away");
    for (int columns = 1; columns < 200; columns += 7) {
      for (int rows = 1; rows < 60; ++rows) {
        view_.columns = columns;
        view_.rows = rows;
        const std::vector<std::string> lines = TopScreen(state_, view_);
        EXPECT_LE(lines.size(), rows);
        for (const std::string& line : lines) {
          int width = 0;
          for (const char c : line) width += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
          ASSERT_LE(width, columns) << line;
          ASSERT_EQ(line.find('\x1b'), std::string::npos);
        }
      }
    }
  }
}

TEST_F(TopScreenTest, TheSelectedJobIsInSight) {
  for (int i = 0; i < 50; ++i)
    state_.jobs.push_back(MakeJob(absl::StrCat("01d", i), v1::Job::SUCCEEDED, absl::StrCat("n", i)));
  EXPECT_THAT(Draw(), Not(HasSubstr("n49")));
  EXPECT_THAT(Draw(), HasSubstr("more"));
  view_.selected = "01d49";
  EXPECT_THAT(Draw(), HasSubstr("n49"));
  view_.ended = false;
  EXPECT_THAT(Draw(), Not(HasSubstr("n49")));
  EXPECT_EQ(ShownJobs(state_, view_).size(), 3);
}

TEST_F(TopScreenTest, SaysWhatIsWrong) {
  view_.color = true;
  state_.lost = absl::UnavailableError("connection refused");
  EXPECT_THAT(Draw(), HasSubstr("ampd at 127.0.0.1:7070 does not answer since 12:00:01 UTC: connection refused"));
  state_.devices[1].add_conditions()->set_kind(v1::DeviceCondition::GPU_LOST);
  EXPECT_THAT(Draw(), HasSubstr("GPU_LOST"));
  EXPECT_THAT(Draw(), HasSubstr("\x1b[31m"));
  view_.color = false;
  EXPECT_THAT(Draw(), Not(HasSubstr("\x1b")));
  state_ = TopState();
  EXPECT_THAT(Draw(), Not(HasSubstr("no jobs"))) << "it has not been asked";
  state_.answered = true;
  EXPECT_THAT(Draw(), HasSubstr("no jobs; ampctl submit FILE makes one"));
}

TEST_F(TopScreenTest, TheWholeReasonIsToldAndNoTimeBeforeTheFirstAnswer) {
  state_ = TopState();
  state_.address = "trainer:7070";
  const std::string reason = "failed to connect to all addresses; last error: certificate verify failed: " +
                             std::string("unable to get local issuer certificate");
  state_.lost = absl::UnavailableError(reason);
  const std::vector<std::string> lines = TopScreen(state_, view_);
  EXPECT_EQ(lines[0] + " " + lines[1], "ampd at trainer:7070 does not answer: " + reason);
  EXPECT_EQ(lines.size(), 24);
}

TEST_F(TopScreenTest, FiguresAreNeverCut) {
  v1::JobSummary* summary = state_.jobs[0].mutable_summary();
  const auto row = [this] { return TopScreen(state_, view_)[5].substr(21); };
  summary->set_step(100000);
  summary->set_total_steps(100000);
  summary->set_steps_skipped(123456);
  EXPECT_EQ(row(), "RUNNING       100k/100k     0.25 65.5k  123k   9.1k    1:00");
  summary->set_step(1234567);
  summary->set_total_steps(20000000);
  summary->set_steps_skipped(12345);
  summary->set_loss(-0.0000123);
  summary->set_loss_scale(1e30);
  EXPECT_EQ(row(), "RUNNING      1.2M/20.0M -1.2e-05 1e+30 12345   9.1k    1:00");
  const auto eta = [this](int64_t total) {
    TopHistory& history = state_.histories["01aaaaaaaa1"];
    v1::JobEvent event = Step(history.sequence() + 1, history.points().back().step + 1, 1, 1, 0);
    event.mutable_step()->set_total_steps(total);
    history.Observe(event);
    return TopScreen(state_, view_)[5].substr(73);
  };
  // A step a second.
  EXPECT_EQ(eta(45041), "12h 30m");
  EXPECT_EQ(eta(8640042 + 43200), "   100d");
}

TEST_F(TopScreenTest, IdsCanBeToldApart) {
  // As those of one sweep: of one millisecond, counted up.
  const std::string first = "01m8dj14htbrv1nr9fjqatdgx1", second = "01m8dj14htbrv1nr9fjqatdgx2";
  state_.jobs = {MakeJob(first, v1::Job::QUEUED, "swept"), MakeJob(second, v1::Job::QUEUED, "swept"),
                 MakeJob("01m8dj15aabrv1nr9fjqatdgx3", v1::Job::QUEUED, "other")};
  std::vector<std::string> lines = TopScreen(state_, view_);
  EXPECT_THAT(lines[5], testing::StartsWith(">..jqatdgx1 swept"));
  EXPECT_THAT(lines[6], testing::StartsWith(" ..jqatdgx2 swept"));
  EXPECT_THAT(lines[7], testing::StartsWith(" 01m8dj15aa other"));
  view_.columns = 100;
  lines = TopScreen(state_, view_);
  EXPECT_THAT(lines[5], HasSubstr(first + " swept"));
  EXPECT_THAT(lines[6], HasSubstr(second + " swept"));
}

TEST_F(TopScreenTest, TheSelectedRowHasAMarkWithoutColours) {
  view_.selected = "01bbbbbbbb1";
  EXPECT_THAT(TopScreen(state_, view_)[8], testing::StartsWith(">01bbbbbbbb old"));
  EXPECT_THAT(TopScreen(state_, view_)[5], testing::StartsWith(" 01aaaaaaaa"));
  view_.color = true;
  EXPECT_THAT(TopScreen(state_, view_)[8], testing::StartsWith("\x1b[7m01bbbbbbbb old"));
}

}  // namespace
}  // namespace ampd::client
