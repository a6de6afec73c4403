#include "server/jobs/retry_policy.h"

#include <gtest/gtest.h>

#include <map>

namespace ampd {
namespace {

TEST(RetryPolicyTest, EveryClass) {
  const std::map<v1::Failure::Class, bool> expected = {
      {v1::Failure::CLASS_UNSPECIFIED, false}, {v1::Failure::INVALID_SPEC, false}, {v1::Failure::DATA, false},
      {v1::Failure::OUT_OF_MEMORY, true},      {v1::Failure::DIVERGED, false},     {v1::Failure::GPU_FAULT, true},
      {v1::Failure::WORKER_CRASH, true},       {v1::Failure::LIMIT, false},        {v1::Failure::INTERNAL, true},
      {v1::Failure::DISK_FULL, false},
  };
  ASSERT_EQ(expected.size(), static_cast<size_t>(v1::Failure::Class_ARRAYSIZE));
  for (const auto& [failure_class, retryable] : expected) {
    EXPECT_EQ(IsRetryable(failure_class), retryable) << v1::Failure::Class_Name(failure_class);
  }
}

TEST(RetryPolicyTest, CountsFailures) {
  EXPECT_TRUE(ShouldRetry(v1::Failure::WORKER_CRASH, 1, 3));
  EXPECT_TRUE(ShouldRetry(v1::Failure::WORKER_CRASH, 2, 3));
  EXPECT_FALSE(ShouldRetry(v1::Failure::WORKER_CRASH, 3, 3));
  EXPECT_FALSE(ShouldRetry(v1::Failure::WORKER_CRASH, 1, 1));
  EXPECT_FALSE(ShouldRetry(v1::Failure::DATA, 1, 3));
}

TEST(RetryPolicyTest, BacksOffByDoubling) {
  const v1::RetrySpec none;
  EXPECT_EQ(RetryDelay(none, 1, 0.5), absl::Seconds(1));
  EXPECT_EQ(RetryDelay(none, 2, 0.5), absl::Seconds(2));
  EXPECT_EQ(RetryDelay(none, 3, 0.5), absl::Seconds(4));
  EXPECT_EQ(RetryDelay(none, 7, 0.5), absl::Seconds(60));
  EXPECT_EQ(RetryDelay(none, 1'000'000, 0.5), absl::Seconds(60));
  v1::RetrySpec retry;
  retry.set_backoff_seconds(10);
  retry.set_max_backoff_seconds(25);
  EXPECT_EQ(RetryDelay(retry, 1, 0.5), absl::Seconds(10));
  EXPECT_EQ(RetryDelay(retry, 2, 0.5), absl::Seconds(20));
  EXPECT_EQ(RetryDelay(retry, 3, 0.5), absl::Seconds(25));
  EXPECT_EQ(RetryDelay(retry, 1, 0), absl::Seconds(8));
  EXPECT_LT(RetryDelay(retry, 1, 0.999), absl::Seconds(12));
  EXPECT_GT(RetryDelay(retry, 1, 0.999), absl::Seconds(11.9));
  retry.set_backoff_seconds(0);
  EXPECT_EQ(RetryDelay(retry, 5, 0.7), absl::ZeroDuration());
}

}  // namespace
}  // namespace ampd
