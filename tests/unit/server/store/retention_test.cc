#include "server/store/retention.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "tests/unit/server/store/store_test_util.h"

namespace ampd {
namespace {

// Of the steps `first`..`last`, `seconds` each.
v1::JobEvent Report(uint64_t sequence, int64_t first, int64_t last, double loss, double seconds = 0.5) {
  v1::JobEvent event = TestEvent(sequence);
  event.set_attempt(1);
  v1::StepReport& step = *event.mutable_step();
  step.set_first_step(first);
  step.set_last_step(last);
  step.set_step_seconds(seconds);
  step.set_samples_per_second(32 / seconds);
  step.set_input_wait_seconds(0.25);
  step.set_epoch(last / 10);
  v1::PhaseReport& phase = *step.add_phases();
  phase.set_name("main");
  phase.set_loss(loss);
  phase.set_steps_applied(last);
  return event;
}

TEST(RetentionTest, AMergedReportIsWhatOneOfItsStepsWouldHaveBeen) {
  const v1::JobEvent merged = MergeStepReports(Report(7, 1, 3, 4.0, 1.0), Report(8, 4, 4, 8.0, 2.0));
  EXPECT_EQ(merged.first_sequence(), 7u);
  EXPECT_EQ(merged.sequence(), 8u);
  const v1::StepReport& step = merged.step();
  EXPECT_EQ(step.first_step(), 1);
  EXPECT_EQ(step.last_step(), 4);
  EXPECT_DOUBLE_EQ(step.phases(0).loss(), (3 * 4.0 + 8.0) / 4);
  EXPECT_EQ(step.phases(0).steps_applied(), 4);
  EXPECT_DOUBLE_EQ(step.step_seconds(), 5.0 / 4);
  // 128 samples in 5 seconds.
  EXPECT_DOUBLE_EQ(step.samples_per_second(), (3 * 32 + 16 * 2) / 5.0);
  EXPECT_DOUBLE_EQ(step.input_wait_seconds(), 0.5);
}

TEST(RetentionTest, ALossThatIsNoneDoesNotCount) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(MergeStepReports(Report(1, 1, 1, nan), Report(2, 2, 2, 3)).step().phases(0).loss(), 3);
  EXPECT_EQ(MergeStepReports(Report(1, 1, 1, 3), Report(2, 2, 2, nan)).step().phases(0).loss(), 3);
  EXPECT_TRUE(std::isnan(MergeStepReports(Report(1, 1, 1, nan), Report(2, 2, 2, nan)).step().phases(0).loss()));
}

TEST(RetentionTest, APhaseThatOnlyOneOfThemHasStays) {
  v1::JobEvent first = Report(1, 1, 1, 1);
  first.mutable_step()->mutable_phases(0)->set_name("generator");
  const v1::JobEvent merged = MergeStepReports(first, Report(2, 2, 2, 2));
  ASSERT_EQ(merged.step().phases_size(), 2);
  EXPECT_EQ(merged.step().phases(0).name(), "main");
  EXPECT_EQ(merged.step().phases(1).loss(), 1);
}

TEST(RetentionTest, OnlyNeighboursMerge) {
  EXPECT_TRUE(CanMerge(Report(1, 1, 1, 0), Report(2, 2, 2, 0)));
  EXPECT_FALSE(CanMerge(Report(1, 1, 1, 0), Report(3, 2, 2, 0))) << "another event between";
  EXPECT_FALSE(CanMerge(Report(1, 5, 5, 0), Report(2, 2, 2, 0))) << "training went back between";
  EXPECT_FALSE(CanMerge(Report(1, 1, 1, 0), TestEvent(2)));
  v1::JobEvent next = Report(2, 2, 2, 0);
  next.set_attempt(2);
  EXPECT_FALSE(CanMerge(Report(1, 1, 1, 0), next));
}

class MergeTest : public testing::Test {
 protected:
  void SetUp() override {
    store_ = *Store::Open({.state_dir = dir_.path()});
    // 1..41; 21 is no report.
    JobWrite write = CreateWrite(1);
    for (uint64_t sequence = 2; sequence <= 41; ++sequence) {
      const int64_t step = static_cast<int64_t>(sequence) - (sequence > 21 ? 2 : 1);
      write.events.push_back(sequence == 21 ? TestEvent(21) : Report(sequence, step, step, 1));
    }
    write.record.job.set_last_sequence(41);
    ASSERT_TRUE(WriteAndWait(*store_, write).ok());
  }

  // Passes until `keep` are left as they were; how many events went.
  int64_t Merge(int64_t keep, int limit) {
    MergePass pass;
    int64_t merged = 0;
    do {
      std::promise<absl::Status> done;
      store_->Change(
          [&](Database& database) {
            const auto next = MergeOldReports(database, TestId(1), pass.after_sequence, keep, limit);
            if (next.ok()) pass = *next;
            return next.status();
          },
          [&](const absl::Status& status) { done.set_value(status); });
      EXPECT_TRUE(done.get_future().get().ok());
      merged += pass.merged;
    } while (pass.after_sequence != 0);
    return merged;
  }

  std::vector<v1::JobEvent> Events() {
    return store_->Await([](const Database& database) { return database.ReadEvents(TestId(1), 0, 1000); })->events;
  }

  // Every sequence number and every step once, in order.
  void ExpectWhole() {
    uint64_t sequence = 1;
    int64_t step = 1;
    for (const v1::JobEvent& event : Events()) {
      ASSERT_EQ(event.first_sequence(), sequence);
      sequence = event.sequence() + 1;
      if (!event.has_step()) continue;
      ASSERT_EQ(event.step().first_step(), step);
      step = event.step().last_step() + 1;
    }
    EXPECT_EQ(sequence, 42u);
    EXPECT_EQ(step, 40);
  }

  TempDir dir_;
  std::unique_ptr<Store> store_;
};

TEST_F(MergeTest, OldOnesBecomeCoarserTheNewestStay) {
  for (const int limit : {1000, 7, 2}) {
    const size_t before = Events().size();
    const int64_t merged = Merge(10, limit);
    EXPECT_GT(merged, 0) << limit;
    const auto events = Events();
    EXPECT_EQ(events.size(), before - static_cast<size_t>(merged));
    ExpectWhole();
    for (size_t i = events.size() - 10; i < events.size(); ++i)
      EXPECT_EQ(events[i].first_sequence(), events[i].sequence());
  }
}

TEST_F(MergeTest, AllTogetherBecomeOneBetweenOtherEvents) {
  while (Merge(0, 1000) > 0) {
  }
  const auto events = Events();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[1].step().last_step(), 19);
  EXPECT_EQ(events[3].step().first_step(), 20);
  ExpectWhole();
  // The log goes on behind it.
  ASSERT_TRUE(WriteAndWait(*store_, EventWrite(1, 42)).ok());
}

TEST_F(MergeTest, AnErrorTakesTheWholeChangeBack) {
  std::promise<absl::Status> done;
  store_->Change(
      [&](Database& database) {
        EXPECT_TRUE(MergeOldReports(database, TestId(1), 0, 0, 1000).ok());
        return absl::InternalError("no");
      },
      [&](const absl::Status& status) { done.set_value(status); });
  EXPECT_FALSE(done.get_future().get().ok());
  EXPECT_EQ(Events().size(), 41u);
}

}  // namespace
}  // namespace ampd
