// Replicas in threads: what they give each other, what their arenas hold afterwards, and how all end when one does.
#include "engine/runtime/thread_collective.h"

#include <cmath>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Runs `body(rank)` for all ranks at once.
void InThreads(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

// Numbers whose sum depends on its order.
float Value(int rank, int64_t i) {
  return std::ldexp(1.0f + static_cast<float>((i * 7 + rank * 13) % 101) / 101, static_cast<int>((i + 5 * rank) % 24));
}

TEST(ReplicaGroup, GivesEveryReplicaWhatEachHas) {
  ReplicaGroup group(3);
  InThreads(3, [&group](int rank) {
    for (int round = 0; round < 200; ++round) {
      std::vector<std::string> all;
      ASSERT_TRUE(group.AllGather(rank, std::string(static_cast<size_t>(rank + round), 'x'), &all).ok());
      for (int other = 0; other < 3; ++other) EXPECT_EQ(all[static_cast<size_t>(other)].size(), other + round);
      std::vector<int> numbers;
      ASSERT_TRUE(group.AllGather(rank, rank * round, &numbers).ok());
      EXPECT_THAT(numbers, ElementsAre(0, round, 2 * round));
    }
  });
}

TEST(ReplicaGroup, NobodyWaitsForOneThatFailed) {
  ReplicaGroup group(3);
  InThreads(3, [&group](int rank) {
    if (rank == 1) return group.Abort(absl::DataLossError("it is broken"));
    std::vector<int> all = {7};
    EXPECT_EQ(group.AllGather(rank, rank, &all), absl::DataLossError("it is broken"));
    EXPECT_THAT(all, ElementsAre(7));
  });
  group.Abort(absl::InternalError("later"));
  EXPECT_EQ(group.status(), absl::DataLossError("it is broken"));
  int calls = 0;
  group.OnAbort([&calls] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(ThreadCollective, SumsInTheOrderOfRanksWhoeverComesFirst) {
  constexpr int64_t kElements = 10007;
  for (const int size : {1, 2, 3, 4}) {
    const auto collectives = MakeThreadCollectives(size);
    // Two ranges; the elements between are nobody's.
    const std::vector<ArenaSlot> ranges = {{3, 5000}, {5010, kElements - 5010}};
    const auto summed = [](int64_t i) { return i >= 3 && (i < 5003 || i >= 5010); };
    std::vector<std::vector<float>> arenas(static_cast<size_t>(size), std::vector<float>(kElements));
    InThreads(size, [&](int rank) {
      Collective& collective = *collectives[static_cast<size_t>(rank)];
      std::vector<float>& arena = arenas[static_cast<size_t>(rank)];
      for (int round = 0; round < 20; ++round) {
        for (int64_t i = 0; i < kElements; ++i) arena[i] = Value(rank, i + round);
        ASSERT_TRUE(collective.AllReduceSum(arena.data(), absl::MakeConstSpan(ranges).first(1)).ok());
        ASSERT_TRUE(collective.AllReduceSum(arena.data(), absl::MakeConstSpan(ranges).subspan(1)).ok());
        ASSERT_TRUE(collective.Finish().ok());
        EXPECT_TRUE(collective.Done());
        int64_t wrong = 0;
        for (int64_t i = 0; i < kElements; ++i) {
          float expected = Value(summed(i) ? 0 : rank, i + round);
          for (int other = 1; other < size && summed(i); ++other) expected += Value(other, i + round);
          wrong += arena[i] == expected ? 0 : 1;
        }
        ASSERT_EQ(wrong, 0) << "replica " << rank << " of " << size << ", round " << round;
      }
    });
  }
}

TEST(ThreadCollective, AFailedReplicaEndsTheSumsOfOthers) {
  const auto collectives = MakeThreadCollectives(2);
  const std::vector<ArenaSlot> range = {{0, 4}};
  std::vector<float> arena(4, 1.0f);
  ASSERT_TRUE(collectives[0]->AllReduceSum(arena.data(), range).ok());
  EXPECT_FALSE(collectives[0]->Done());
  auto finished = std::async(std::launch::async, [&] { return collectives[0]->Finish(); });
  collectives[1]->group()->Abort(absl::InternalError("replica 1 is gone"));
  ASSERT_EQ(finished.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_EQ(finished.get(), absl::InternalError("replica 1 is gone"));
  EXPECT_EQ(collectives[0]->AllReduceSum(arena.data(), range), absl::InternalError("replica 1 is gone"));
  EXPECT_THAT(arena, ElementsAre(1, 1, 1, 1));
}

TEST(ThreadCollective, ReplicasThatDisagreeAreRefused) {
  const auto collectives = MakeThreadCollectives(2);
  const std::vector<ArenaSlot> ranges = {{0, 4}, {0, 3}};
  std::vector<std::vector<float>> arenas(2, std::vector<float>(4, 1.0f));
  InThreads(2, [&](int rank) {
    const size_t r = static_cast<size_t>(rank);
    // The second may come after the end.
    collectives[r]->AllReduceSum(arenas[r].data(), absl::MakeConstSpan(ranges).subspan(r, 1)).IgnoreError();
    EXPECT_THAT(std::string(collectives[r]->Finish().message()), HasSubstr("replica 1 adds up other gradients"));
  });
}

}  // namespace
}  // namespace ampd::runtime
