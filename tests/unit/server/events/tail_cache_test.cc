#include "server/events/tail_cache.h"

#include <gtest/gtest.h>

#include "tests/unit/server/store/store_test_util.h"

namespace ampd {
namespace {

TEST(TailCacheTest, ServesTheEndAndNothingItDoesNotHave) {
  TailCache cache(1 << 20);
  EXPECT_FALSE(cache.Read("a", 0, 10).has_value());
  for (uint64_t sequence = 5; sequence <= 8; ++sequence) cache.Add("a", TestEvent(sequence));
  EXPECT_FALSE(cache.Read("a", 3, 10).has_value()) << "event 4 is not there";
  EXPECT_FALSE(cache.Read("a", 9, 10).has_value()) << "9 is beyond what the cache knows";
  EXPECT_FALSE(cache.Read("a", UINT64_MAX, 10).has_value());
  const auto page = cache.Read("a", 4, 2);
  ASSERT_TRUE(page.has_value());
  ASSERT_EQ(page->events.size(), 2u);
  EXPECT_EQ(page->events[0].sequence(), 5u);
  EXPECT_EQ(page->last_sequence, 8u);
  EXPECT_TRUE(cache.Read("a", 8, 10)->events.empty());
}

TEST(TailCacheTest, StaysWithinItsBytesDroppingTheOldest) {
  const size_t event_bytes = TestEvent(1, std::string(100, 'x')).ByteSizeLong();
  TailCache cache(event_bytes * 10);
  for (uint64_t sequence = 1; sequence <= 50; ++sequence) {
    cache.Add(sequence % 2 == 0 ? "a" : "b", TestEvent((sequence + 1) / 2, std::string(100, 'x')));
    EXPECT_LE(cache.bytes(), event_bytes * 10);
  }
  EXPECT_EQ(cache.Read("a", 24, 10)->events.size(), 1u);
  EXPECT_EQ(cache.Read("a", 20, 10)->events.size(), 5u);
  EXPECT_FALSE(cache.Read("a", 19, 10).has_value());
}

}  // namespace
}  // namespace ampd
