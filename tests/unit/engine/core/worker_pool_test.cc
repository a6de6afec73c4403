#include "engine/core/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace ampd {
namespace {

TEST(WorkerPool, DoesEachItemOnce) {
  for (const int threads : {1, 2, 5}) {
    WorkerPool pool(threads);
    ASSERT_EQ(pool.threads(), threads);
    for (const int64_t count : {0, 1, 3, 1000}) {
      // Each item is one thread's, and what it writes is seen when ForEach() returns.
      std::vector<int> done(static_cast<size_t>(count));
      std::vector<std::atomic<int>> at_once(static_cast<size_t>(threads));
      std::atomic<bool> alone{true};
      pool.ForEach(count, [&](int64_t i, int worker) {
        std::atomic<int>& own = at_once[static_cast<size_t>(worker)];
        if (own.fetch_add(1) != 0) alone = false;
        ++done[static_cast<size_t>(i)];
        own.fetch_sub(1);
      });
      for (const int n : done) EXPECT_EQ(n, 1) << threads << " threads, " << count << " items";
      EXPECT_TRUE(alone) << "two items at once by one worker";
    }
  }
}

TEST(WorkerPool, EndsWithoutWork) { const WorkerPool pool(4); }

}  // namespace
}  // namespace ampd
