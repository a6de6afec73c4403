#include "server/jobs/timer_queue.h"

#include <gmock/gmock.h>

#include <vector>

namespace ampd {
namespace {

using ::testing::ElementsAre;

TEST(TimerQueueTest, RunsWhatIsDueInOrder) {
  TimerQueue timers;
  std::vector<int> ran;
  timers.Add(absl::Seconds(3), [&] { ran.push_back(3); });
  timers.Add(absl::Seconds(1), [&] { ran.push_back(1); });
  timers.Add(absl::Seconds(1), [&] { ran.push_back(11); });
  EXPECT_EQ(timers.NextDeadline(), absl::Seconds(1));
  timers.RunDue(absl::Seconds(2));
  EXPECT_THAT(ran, ElementsAre(1, 11));
  EXPECT_EQ(timers.NextDeadline(), absl::Seconds(3));
  timers.RunDue(absl::Seconds(3));
  EXPECT_THAT(ran, ElementsAre(1, 11, 3));
  EXPECT_FALSE(timers.NextDeadline().has_value());
}

TEST(TimerQueueTest, ActionsMayAddAndCancel) {
  TimerQueue timers;
  std::vector<int> ran;
  TimerId victim = 0;
  timers.Add(absl::Seconds(1), [&] {
    ran.push_back(1);
    timers.Cancel(&victim);
    timers.Add(absl::Seconds(1), [&] { ran.push_back(2); });
  });
  victim = timers.Add(absl::Seconds(1), [&] { ran.push_back(99); });
  timers.RunDue(absl::Seconds(1));
  EXPECT_THAT(ran, ElementsAre(1, 2));
  EXPECT_EQ(victim, 0u);
  timers.Cancel(&victim);
}

}  // namespace
}  // namespace ampd
