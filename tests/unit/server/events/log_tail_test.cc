#include "server/events/log_tail.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "tests/unit/server/store/store_test_util.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LogTailTest : public ::testing::Test {
 protected:
  LogTailTest() : store_(*Store::Open({.state_dir = dir_.path()})), log_(std::make_unique<EventLog>(store_.get())) {}

  // A job whose events end at these sequence numbers; each covers those since the one before.
  void MakeLog(const std::vector<uint64_t>& ends) {
    JobWrite write = CreateWrite(1);
    write.events.clear();
    uint64_t first = 1;
    for (const uint64_t end : ends) {
      write.events.push_back(TestEvent(end));
      write.events.back().set_first_sequence(std::exchange(first, end + 1));
    }
    write.record.job.set_last_sequence(ends.back());
    ASSERT_TRUE(WriteAndWait(*store_, std::move(write)).ok());
  }
  // Of the next stretch back.
  std::vector<uint64_t> Next(LogTail& tail) {
    std::vector<uint64_t> sequences;
    const auto visited = tail.Back([&](const std::vector<v1::JobEvent>& page) {
      for (const v1::JobEvent& event : page) sequences.push_back(event.sequence());
    });
    EXPECT_TRUE(visited.ok()) << visited.status();
    EXPECT_EQ(*visited, static_cast<int64_t>(sequences.size()));
    EXPECT_LE(sequences.size(), static_cast<size_t>(LogTail::kMaxStretch));
    return sequences;
  }

  TempDir dir_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<EventLog> log_;
};

TEST_F(LogTailTest, GoesBackStretchByStretch) {
  MakeLog({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  LogTail tail(log_.get(), TestId(1), 1, 9, 3);
  EXPECT_THAT(Next(tail), ElementsAre(7, 8, 9));
  EXPECT_EQ(tail.end(), 6u);
  EXPECT_THAT(Next(tail), ElementsAre(4, 5, 6));
  EXPECT_THAT(Next(tail), ElementsAre(2, 3));
  EXPECT_TRUE(tail.done());
  EXPECT_THAT(Next(tail), IsEmpty());
}

TEST_F(LogTailTest, StretchesGrowWhereEventsStandForManyNumbers) {
  std::vector<uint64_t> ends;
  for (uint64_t i = 1; i <= 20; ++i) ends.push_back(i * 100'000);
  MakeLog(ends);
  for (const int first : {1, 10, LogTail::kMaxStretch}) {
    LogTail tail(log_.get(), TestId(1), 0, ends.back(), first);
    std::vector<uint64_t> all;
    int stretches = 0;
    while (!tail.done()) {
      const std::vector<uint64_t> next = Next(tail);
      all.insert(all.begin(), next.begin(), next.end());
      ++stretches;
    }
    EXPECT_EQ(all, ends);
    // 17 to grow from one number to 100,000, one an event, and some.
    EXPECT_LE(stretches, 40) << first;
  }
}

TEST_F(LogTailTest, AStretchThatHasGrownIsBoundedWhereEventsAreDense) {
  std::vector<uint64_t> ends(5000);
  for (uint64_t i = 0; i < ends.size(); ++i) ends[i] = i + 1;
  for (uint64_t i = 1; i <= 20; ++i) ends.push_back(5000 + i * 1000);
  MakeLog(ends);
  LogTail tail(log_.get(), TestId(1), 0, ends.back(), LogTail::kMaxStretch);
  std::vector<uint64_t> all;
  while (!tail.done()) {
    const std::vector<uint64_t> next = Next(tail);
    all.insert(all.begin(), next.begin(), next.end());
  }
  EXPECT_EQ(all, ends);
}

TEST_F(LogTailTest, AnUnknownJobIsAnError) {
  LogTail tail(log_.get(), TestId(1), 0, 9, 3);
  EXPECT_EQ(tail.Back([](const std::vector<v1::JobEvent>&) {}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace ampd
