// Figures by step, in few rows, without losing extremes.
#ifndef AMPD_SERVER_WEB_SERIES_H_
#define AMPD_SERVER_WEB_SERIES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace ampd {

// One figure over some reports.
struct Cell {
  // Of the finite values; as they are here without any.
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;
  double last = std::numeric_limits<double>::quiet_NaN();
  int64_t finite = 0;
  // NaN or infinite.
  int64_t non_finite = 0;

  void Add(double value);
  // `later` is of the reports after these.
  void Merge(const Cell& later);
};

inline constexpr int kSeriesColumns = 4;

// Reports that follow each other.
struct SeriesRow {
  // Both included.
  int64_t first_step = 0;
  int64_t last_step = 0;
  int64_t reports = 1;
  // Since the job's start, up to last_step.
  int64_t skipped_total = 0;
  std::array<Cell, kSeriesColumns> cells;

  void Merge(const SeriesRow& later);
};

struct SeriesBucket {
  // Its skipped_total is of no use.
  SeriesRow row;
  // Steps of these reports without an update.
  int64_t skipped = 0;
};

// Not thread-safe.
class Series {
 public:
  // Steps that are there already are repeated: `row` takes their place.
  void Add(const SeriesRow& row);
  // The steps after `to_step` did not happen.
  void Rewind(int64_t to_step);
  // Merges neighbours as long as a row has at most `reports` of them then.
  void Coarsen(int64_t reports);

  // Every row that has steps of [from, to], in the bucket of its last step: bucket i has the steps
  // i * width + 1 ... (i + 1) * width. Those without rows are left out.
  std::vector<SeriesBucket> Buckets(int64_t from, int64_t to, int64_t width) const;

  size_t size() const { return rows_.size(); }
  int64_t last_step() const { return rows_.empty() ? 0 : rows_.back().last_step; }

 private:
  // Ordered by their steps, which do not overlap.
  std::vector<SeriesRow> rows_;
};

// The least width of buckets of which at most `points` >= 1 have steps of [from, to], 1 <= from <= to; of steps beyond
// kMaxSteps, which no job has, it may be a larger one that does.
int64_t BucketWidth(int64_t from, int64_t to, int64_t points);

}  // namespace ampd

#endif  // AMPD_SERVER_WEB_SERIES_H_
