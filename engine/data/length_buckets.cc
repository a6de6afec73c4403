#include "engine/data/length_buckets.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/rng.h"
#include "engine/data/epoch_order.h"

namespace ampd::data {
namespace {

constexpr int64_t kMultiple = 8;

int64_t Longest(absl::Span<const int32_t> lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

size_t BucketOf(int64_t length, absl::Span<const int64_t> buckets) {
  return static_cast<size_t>(std::lower_bound(buckets.begin(), buckets.end(), length) - buckets.begin());
}

std::vector<int64_t> DefaultBuckets(int64_t longest) {
  const int64_t count = (longest + kMultiple - 1) / kMultiple;
  const int64_t step = (count + kDefaultBuckets - 1) / kDefaultBuckets * kMultiple;
  std::vector<int64_t> buckets;
  for (int64_t length = step; length < longest + step; length += step) buckets.push_back(length);
  return buckets;
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> LengthBuckets(absl::Span<const int32_t> train, absl::Span<const int32_t> eval,
                                                   absl::Span<const int64_t> given) {
  const int64_t longest = std::max(Longest(train), Longest(eval));
  const std::vector<int64_t> buckets =
      given.empty() ? DefaultBuckets(longest) : std::vector<int64_t>(given.begin(), given.end());
  if (buckets.empty() || buckets.back() < longest) {
    return absl::InvalidArgumentError(absl::StrCat("data.length_buckets end at ", given.empty() ? 0 : given.back(),
                                                   ", the longest sample has ", longest, " steps"));
  }
  std::vector<int32_t> both(train.begin(), train.end());
  both.insert(both.end(), eval.begin(), eval.end());
  return UsedBuckets(both, buckets);
}

std::vector<int64_t> UsedBuckets(absl::Span<const int32_t> lengths, absl::Span<const int64_t> buckets) {
  std::vector<bool> used(buckets.size(), false);
  for (const int32_t length : lengths) used[BucketOf(length, buckets)] = true;
  std::vector<int64_t> result;
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (used[i]) result.push_back(buckets[i]);
  }
  return result;
}

std::vector<BucketBatch> BucketBatches(absl::Span<const int32_t> lengths, absl::Span<const int64_t> buckets,
                                       absl::Span<const int64_t> order, int64_t batch_size) {
  // Places in `order`, ascending.
  std::vector<std::vector<int64_t>> places(buckets.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const int64_t length = lengths[static_cast<size_t>(order[i])];
    places[BucketOf(length, buckets)].push_back(static_cast<int64_t>(i));
  }
  std::vector<BucketBatch> batches;
  std::vector<int64_t> carried;
  for (size_t b = 0; b < buckets.size(); ++b) {
    std::vector<int64_t> all;
    std::merge(carried.begin(), carried.end(), places[b].begin(), places[b].end(), std::back_inserter(all));
    const int64_t count = static_cast<int64_t>(all.size());
    const int64_t taken = b + 1 < buckets.size() ? count / batch_size * batch_size : count;
    for (int64_t first = 0; first < taken; first += batch_size) {
      BucketBatch batch{b, {}};
      for (int64_t i = first; i < std::min(first + batch_size, taken); ++i) {
        batch.samples.push_back(order[static_cast<size_t>(all[static_cast<size_t>(i)])]);
      }
      batches.push_back(std::move(batch));
    }
    carried.assign(all.begin() + taken, all.end());
  }
  return batches;
}

std::vector<BucketBatch> EpochBatches(absl::Span<const int32_t> lengths, absl::Span<const int64_t> buckets,
                                      int64_t batch_size, bool shuffle, uint64_t seed, int64_t epoch) {
  const int64_t size = static_cast<int64_t>(lengths.size());
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  if (shuffle) order = EpochOrder(size, seed, epoch);
  order.resize(static_cast<size_t>(size / batch_size * batch_size));
  std::vector<BucketBatch> batches = BucketBatches(lengths, buckets, order, batch_size);
  if (!shuffle) return batches;
  RngSequence rng(seed, "data.buckets", static_cast<uint64_t>(epoch));
  for (size_t i = batches.size(); i > 1; --i) std::swap(batches[i - 1], batches[rng.NextBelow(i)]);
  return batches;
}

}  // namespace ampd::data
