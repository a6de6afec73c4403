#include "server/web/series.h"

#include <algorithm>
#include <cmath>

#include "proto/spec/limits.h"

namespace ampd {
namespace {

// With steps up to kMaxSteps no more are looked at: of widths up to its root there are so many, and beyond it so many
// numbers that the last bucket can have.
constexpr int64_t kMostWidths = int64_t{1} << 21;
static_assert(kMostWidths / 2 * (kMostWidths / 2) == kMaxSteps);

}  // namespace

void Cell::Add(double value) {
  if (!std::isfinite(value)) {
    ++non_finite;
    return;
  }
  min = std::min(min, value);
  max = std::max(max, value);
  sum += value;
  last = value;
  ++finite;
}

void Cell::Merge(const Cell& later) {
  min = std::min(min, later.min);
  max = std::max(max, later.max);
  sum += later.sum;
  if (later.finite > 0) last = later.last;
  finite += later.finite;
  non_finite += later.non_finite;
}

void SeriesRow::Merge(const SeriesRow& later) {
  last_step = later.last_step;
  reports += later.reports;
  skipped_total = later.skipped_total;
  for (int i = 0; i < kSeriesColumns; ++i) cells[i].Merge(later.cells[i]);
}

void Series::Add(const SeriesRow& row) {
  Rewind(row.first_step - 1);
  rows_.push_back(row);
}

void Series::Rewind(int64_t to_step) {
  while (!rows_.empty() && rows_.back().last_step > to_step) rows_.pop_back();
}

void Series::Coarsen(int64_t reports) {
  size_t kept = 0;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (kept > 0 && rows_[kept - 1].reports + rows_[i].reports <= reports) {
      rows_[kept - 1].Merge(rows_[i]);
    } else {
      if (kept != i) rows_[kept] = rows_[i];
      ++kept;
    }
  }
  rows_.resize(kept);
  rows_.shrink_to_fit();
}

std::vector<SeriesBucket> Series::Buckets(int64_t from, int64_t to, int64_t width) const {
  auto row = std::lower_bound(rows_.begin(), rows_.end(), from,
                              [](const SeriesRow& row, int64_t step) { return row.last_step < step; });
  int64_t skipped_before = row == rows_.begin() ? 0 : std::prev(row)->skipped_total;
  std::vector<SeriesBucket> buckets;
  int64_t bucket_of_last = -1;
  for (; row != rows_.end() && row->first_step <= to; ++row) {
    const int64_t bucket = (row->last_step - 1) / width;
    if (bucket == bucket_of_last) {
      buckets.back().row.Merge(*row);
    } else {
      buckets.push_back({*row, 0});
    }
    bucket_of_last = bucket;
    buckets.back().skipped += std::max<int64_t>(0, row->skipped_total - skipped_before);
    skipped_before = row->skipped_total;
  }
  return buckets;
}

int64_t BucketWidth(int64_t from, int64_t to, int64_t points) {
  int64_t width = std::max<int64_t>(1, (to - from) / points);
  for (int64_t tries = 0; tries < kMostWidths; ++tries) {
    const int64_t last = (to - 1) / width;
    if (last - (from - 1) / width < points) return width;
    // As long as the number of the last bucket stays there are no fewer: on to the first width that lowers it.
    width = (to - 1) / last + 1;
  }
  return points > 1 ? (to - from) / (points - 1) + 1 : to;
}

}  // namespace ampd
