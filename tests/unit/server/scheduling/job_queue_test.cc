#include "server/scheduling/job_queue.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace ampd {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

QueuedJob HeldJob(int64_t sequence) {
  QueuedJob job;
  job.id = absl::StrCat("job", sequence);
  job.submit_sequence = sequence;
  job.not_before = kNow + absl::Seconds(sequence);
  return job;
}

TEST(JobQueueTest, HeldJobsAreCountedAsTheyComeAndGo) {
  JobQueue queue;
  for (const int64_t sequence : {9, 3, 5, 7}) queue.Put(HeldJob(sequence), kNow);
  const auto before = [&](int64_t sequence) { return queue.HeldBefore(HeldJob(sequence)); };
  EXPECT_EQ(before(3), 0u);
  EXPECT_EQ(before(9), 3u);
  queue.Put(HeldJob(4), kNow);
  EXPECT_EQ(before(9), 4u);
  queue.Remove("job5");
  EXPECT_EQ(before(9), 3u);
  queue.Release(kNow + absl::Seconds(4));
  EXPECT_EQ(before(9), 1u);
  // One that waits for another as well.
  QueuedJob job = HeldJob(9);
  job.waits_for = {"job7"};
  queue.Put(job, kNow);
  queue.Release(kNow + absl::Hours(1));
  EXPECT_EQ(before(9), 0u);
  EXPECT_EQ(queue.held(), 1u);
}

}  // namespace
}  // namespace ampd
