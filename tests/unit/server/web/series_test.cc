#include "server/web/series.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "server/web/job_digest.h"
#include "server/web/series_json.h"

namespace ampd {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

v1::JobEvent Report(uint64_t sequence, int64_t first, int64_t last, double loss, int64_t skipped = 0) {
  v1::JobEvent event;
  event.set_first_sequence(sequence);
  event.set_sequence(sequence);
  v1::StepReport& report = *event.mutable_step();
  report.set_first_step(first);
  report.set_last_step(last);
  report.set_total_steps(1000000);
  report.set_samples_per_second(static_cast<double>(last));
  v1::PhaseReport& phase = *report.add_phases();
  phase.set_name("main");
  phase.set_loss(loss);
  phase.set_loss_scale(1024);
  phase.set_steps_skipped(skipped);
  return event;
}

// What a bucket is to say, from the reports themselves.
struct Expected {
  double min = INFINITY, max = -INFINITY, sum = 0, last = kNan;
  int64_t finite = 0, non_finite = 0, reports = 0, skipped = 0, first_step = 0, last_step = 0;
};

// Straightforward: every report into the bucket of its last step.
std::map<int64_t, Expected> Reference(const std::vector<v1::JobEvent>& reports, int64_t from, int64_t to,
                                      int64_t width) {
  std::map<int64_t, Expected> buckets;
  int64_t skipped_before = 0;
  for (const v1::JobEvent& event : reports) {
    const v1::StepReport& report = event.step();
    const int64_t skipped = report.phases(0).steps_skipped() - skipped_before;
    skipped_before = report.phases(0).steps_skipped();
    if (report.last_step() < from || report.first_step() > to) continue;
    Expected& bucket = buckets[(report.last_step() - 1) / width];
    const double loss = report.phases(0).loss();
    if (bucket.reports++ == 0) bucket.first_step = report.first_step();
    bucket.last_step = report.last_step();
    bucket.skipped += skipped;
    if (!std::isfinite(loss)) {
      ++bucket.non_finite;
      continue;
    }
    bucket.min = std::min(bucket.min, loss);
    bucket.max = std::max(bucket.max, loss);
    bucket.sum += loss;
    bucket.last = loss;
    ++bucket.finite;
  }
  return buckets;
}

std::vector<v1::JobEvent> RandomReports(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<v1::JobEvent> reports;
  int64_t step = 0, skipped = 0;
  for (int i = 1; i <= count; ++i) {
    const int64_t steps = 1 + random() % 5;
    double loss = std::ldexp(static_cast<double>(random() % 1000), static_cast<int>(random() % 40) - 20);
    if (random() % 50 == 0) loss = random() % 2 == 0 ? kNan : INFINITY;
    if (random() % 10 == 0) skipped += random() % (steps + 1);
    reports.push_back(Report(i, step + 1, step + steps, loss, skipped));
    step += steps;
  }
  return reports;
}

const Series& PhaseOf(const JobDigest& digest) { return digest.phases().at(0).second; }

TEST(SeriesTest, BucketsAreThoseOfTheReference) {
  const std::vector<v1::JobEvent> reports = RandomReports(5000, 7);
  JobDigest digest;
  for (const v1::JobEvent& event : reports) digest.Add(event);
  const int64_t newest = digest.last_step();
  for (const auto& [from, to, points] : std::vector<std::array<int64_t, 3>>{{1, newest, 1000},
                                                                            {1, newest, 1},
                                                                            {1, newest, 4000},
                                                                            {700, 900, 50},
                                                                            {newest - 3, newest, 1000},
                                                                            {3, 3, 2}}) {
    const int64_t width = BucketWidth(from, to, points);
    const std::vector<SeriesBucket> buckets = PhaseOf(digest).Buckets(from, to, width);
    const std::map<int64_t, Expected> expected = Reference(reports, from, to, width);
    ASSERT_EQ(buckets.size(), expected.size());
    // A report that reaches beyond the range may have a bucket of its own.
    EXPECT_LE(buckets.size(), static_cast<size_t>(points) + 1);
    auto bucket = buckets.begin();
    for (const auto& [number, want] : expected) {
      const SeriesRow& row = bucket->row;
      const Cell& loss = row.cells[JobDigest::kLoss];
      EXPECT_EQ(loss.min, want.min);
      EXPECT_EQ(loss.max, want.max);
      EXPECT_DOUBLE_EQ(loss.sum, want.sum);
      EXPECT_TRUE(loss.last == want.last || (std::isnan(loss.last) && std::isnan(want.last)));
      EXPECT_EQ(loss.finite, want.finite);
      EXPECT_EQ(loss.non_finite, want.non_finite);
      EXPECT_EQ(row.reports, want.reports);
      EXPECT_EQ(row.first_step, want.first_step);
      EXPECT_EQ(row.last_step, want.last_step);
      EXPECT_EQ(bucket->skipped, want.skipped);
      ++bucket;
    }
  }
}

TEST(SeriesTest, MergingKeepsExtremesCountsAndResolution) {
  const std::vector<v1::JobEvent> reports = RandomReports(100000, 11);
  JobDigest digest;
  for (const v1::JobEvent& event : reports) digest.Add(event);
  EXPECT_LE(PhaseOf(digest).size() * 2, JobDigest::kMaxRows);
  EXPECT_LT(digest.Bytes(), size_t{16} << 20);
  // As even as may be, however often rows were merged.
  const std::vector<SeriesBucket> rows = PhaseOf(digest).Buckets(1, digest.last_step(), 1);
  EXPECT_GT(rows.size(), 100000u / 16);
  for (const SeriesBucket& row : rows) EXPECT_LE(row.row.reports, 16);
  const Expected want = Reference(reports, 1, digest.last_step(), digest.last_step()).at(0);
  const std::vector<SeriesBucket> all = PhaseOf(digest).Buckets(1, digest.last_step(), digest.last_step());
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].row.cells[JobDigest::kLoss].min, want.min);
  EXPECT_EQ(all[0].row.cells[JobDigest::kLoss].max, want.max);
  EXPECT_EQ(all[0].row.cells[JobDigest::kLoss].non_finite, want.non_finite);
  EXPECT_EQ(all[0].row.reports, 100000);
  EXPECT_EQ(all[0].skipped, want.skipped);
}

TEST(SeriesTest, StepsThatAreRepeatedCountOnce) {
  JobDigest digest;
  uint64_t sequence = 0;
  for (int64_t step = 1; step <= 10; ++step) digest.Add(Report(++sequence, step, step, 1, step > 5 ? 2 : 0));
  v1::JobEvent evaluation;
  evaluation.set_sequence(++sequence);
  evaluation.mutable_evaluation()->set_step(10);
  digest.Add(evaluation);
  v1::JobEvent rewound;
  rewound.set_sequence(++sequence);
  rewound.mutable_rewound()->set_to_step(5);
  digest.Add(rewound);
  EXPECT_EQ(digest.last_step(), 5);
  EXPECT_TRUE(digest.evaluations().empty());
  for (int64_t step = 6; step <= 8; ++step) digest.Add(Report(++sequence, step, step, 3, step > 7 ? 1 : 0));
  const std::vector<SeriesBucket> buckets = PhaseOf(digest).Buckets(1, 8, 8);
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0].row.reports, 8);
  EXPECT_EQ(buckets[0].row.cells[JobDigest::kLoss].sum, 5 * 1 + 3 * 3);
  EXPECT_EQ(buckets[0].skipped, 1);
  EXPECT_EQ(digest.sequence(), sequence);
}

TEST(SeriesTest, AMergedReportTakesThePlaceOfWhatItMerged) {
  JobDigest digest;
  for (int64_t step = 1; step <= 4; ++step) digest.Add(Report(step, step, step, 1));
  v1::JobEvent merged = Report(6, 3, 6, 2);
  merged.set_first_sequence(3);
  digest.Add(merged);
  const std::vector<SeriesBucket> buckets = PhaseOf(digest).Buckets(1, 6, 1);
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[2].row.first_step, 3);
  EXPECT_EQ(buckets[2].row.last_step, 6);
}

TEST(BucketWidthTest, IsTheLeastThatFits) {
  for (int64_t from : {1, 2, 99, 1000}) {
    for (int64_t steps : {1, 2, 10, 999, 1000, 1001, 123456}) {
      for (int64_t points : {1, 2, 7, 1000, 4000}) {
        const int64_t to = from + steps - 1, width = BucketWidth(from, to, points);
        const auto buckets = [&](int64_t w) { return (to - 1) / w - (from - 1) / w + 1; };
        EXPECT_LE(buckets(width), points);
        const int64_t narrower = std::max<int64_t>(1, width - 1);
        EXPECT_TRUE(width == 1 || buckets(narrower) > points) << from << " " << to << " " << points;
      }
    }
  }
}

TEST(BucketWidthTest, IsWhatOneByOneWouldFind) {
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    const int64_t from = 1 + random() % (i % 2 == 0 ? 100 : 100000), to = from + random() % 3000;
    const int64_t points = 1 + random() % (i % 3 == 0 ? 4 : 1000);
    int64_t width = std::max<int64_t>(1, (to - from) / points);
    while ((to - 1) / width - (from - 1) / width + 1 > points) ++width;
    ASSERT_EQ(BucketWidth(from, to, points), width) << from << " " << to << " " << points;
  }
}

// A worker names the steps.
TEST(BucketWidthTest, IsFoundWhateverTheStepsAre) {
  EXPECT_EQ(BucketWidth(4'000'000'000'000'000'001, 4'600'000'000'000'000'000, 1), 657'142'857'142'857'143);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const int64_t to : {int64_t{1} << 40, int64_t{1} << 62, int64_t{4'600'000'000'000'000'000}, kMost}) {
    for (const int64_t from : {int64_t{1}, to / 7 * 6, to / 2, to - 2'000'000'000, to - 1'000'000, to - 1, to}) {
      for (const int64_t points : {1, 2, 3, 1000, 4000}) {
        const int64_t width = BucketWidth(from, to, points);
        EXPECT_GE(width, 1);
        EXPECT_LE((to - 1) / width - (from - 1) / width + 1, points) << from << " " << to << " " << points;
      }
    }
  }
}

TEST(JobDigestTest, KnowsTheNewestOfAKind) {
  JobDigest digest;
  uint64_t sequence = 0;
  for (int i = 0; i < 100; ++i) {
    digest.Add(Report(++sequence, i + 1, i + 1, 1));
    v1::JobEvent event;
    event.set_sequence(++sequence);
    if (i % 10 == 0) {
      event.mutable_evaluation()->set_step(i);
    } else {
      event.mutable_log()->set_text("x");
    }
    digest.Add(event);
  }
  EXPECT_THAT(digest.Newest({v1::JobEvent::kEvaluation}, 3), ::testing::ElementsAre(142, 162, 182));
  EXPECT_THAT(digest.Newest({v1::JobEvent::kLog}, 2), ::testing::ElementsAre(198, 200));
  EXPECT_THAT(digest.Newest({v1::JobEvent::kArtifact}, 2), ::testing::IsEmpty());
  EXPECT_EQ(digest.evaluations().size(), 10u);
}

TEST(SeriesJsonTest, IsJsonWithEveryColumnOfOneLength) {
  JobDigest digest;
  const SeriesRange range{1, 0, 100};
  for (const std::string& text : {SeriesJson("empty", digest, range), [&] {
                                    for (const v1::JobEvent& event : RandomReports(3000, 3)) digest.Add(event);
                                    return SeriesJson("\"job\"", digest, range);
                                  }()}) {
    google::protobuf::Struct json;
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(text, &json).ok()) << text;
    for (const auto& phase : json.fields().at("phases").list_value().values()) {
      const auto& fields = phase.struct_value().fields();
      const int length = fields.at("last_step").list_value().values_size();
      EXPECT_GT(length, 50);
      EXPECT_LE(length, 100);
      EXPECT_EQ(fields.at("skipped").list_value().values_size(), length);
      for (const auto& [name, column] : fields.at("columns").struct_value().fields()) {
        for (const auto& [of, values] : column.struct_value().fields()) {
          EXPECT_EQ(values.list_value().values_size(), length) << name << "." << of;
        }
      }
    }
  }
}

TEST(SeriesJsonTest, WhatIsNotFiniteIsCountedAndNull) {
  JobDigest digest;
  digest.Add(Report(1, 1, 1, kNan));
  digest.Add(Report(2, 2, 2, INFINITY));
  digest.Add(Report(3, 3, 3, 0.1));
  const std::string text = SeriesJson("j", digest, {1, 0, 3});
  EXPECT_THAT(text, ::testing::HasSubstr("\"loss\": {\"min\": [null,null,0.1], \"max\": [null,null,0.1], "
                                         "\"mean\": [null,null,0.1], \"last\": [null,null,0.1], "
                                         "\"non_finite\": [1,1,0]}"));
}

}  // namespace
}  // namespace ampd
