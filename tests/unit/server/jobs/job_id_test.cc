#include "server/jobs/job_id.h"

#include <gtest/gtest.h>

#include <set>

namespace ampd {
namespace {

TEST(JobIdTest, IsALowerCaseUlid) {
  JobIdGenerator generator;
  // 1469918176385 ms is "01ARYZ6S41" in the ULID specification's example.
  const std::string id = generator.Next(absl::FromUnixMillis(1469918176385));
  ASSERT_EQ(id.size(), 26u);
  EXPECT_EQ(id.substr(0, 10), "01aryz6s41");
  EXPECT_EQ(id.find_first_not_of("0123456789abcdefghjkmnpqrstvwxyz"), std::string::npos);
}

TEST(JobIdTest, RisesAlwaysAndNeverRepeats) {
  JobIdGenerator generator;
  std::set<std::string> seen;
  std::string last;
  for (int i = 0; i < 5000; ++i) {
    // A clock that stands still, then goes back, then forward.
    const int64_t millis = i < 2000 ? 5000 : i < 3000 ? 4000 : 5000 + i;
    const std::string id = generator.Next(absl::FromUnixMillis(millis));
    EXPECT_GT(id, last);
    EXPECT_TRUE(seen.insert(id).second);
    last = id;
  }
}

TEST(JobIdTest, ContinuesAfterAnEarlierGenerator) {
  const absl::Time now = absl::FromUnixMillis(1469918176385);
  for (int i = 0; i < 100; ++i) {
    const std::string earlier = JobIdGenerator().Next(now);
    JobIdGenerator later;
    later.StartAfter(earlier);
    EXPECT_GT(later.Next(now), earlier);
    EXPECT_GT(later.Next(now - absl::Hours(1)), earlier);
  }
  JobIdGenerator generator;
  generator.StartAfter("");
  generator.StartAfter("no ulid, yet 26 characters");
  EXPECT_EQ(generator.Next(now).substr(0, 10), "01aryz6s41");
}

TEST(JobIdTest, DifferentGeneratorsDiffer) {
  const absl::Time now = absl::FromUnixMillis(1);
  EXPECT_NE(JobIdGenerator().Next(now), JobIdGenerator().Next(now));
}

}  // namespace
}  // namespace ampd
