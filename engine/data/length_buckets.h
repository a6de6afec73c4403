// Samples of different lengths, put into batches with others that are about as long.
#ifndef AMPD_ENGINE_DATA_LENGTH_BUCKETS_H_
#define AMPD_ENGINE_DATA_LENGTH_BUCKETS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace ampd::data {

// Buckets at most, where the job names none.
inline constexpr int64_t kDefaultBuckets = 16;

// The lengths to which batches are padded, ascending: of `given` (ascending), or where that is empty of the multiples
// of 8, or of 16, 24, ... if those of 8 up to the longest sample were more than kDefaultBuckets, the ones that a sample
// of either set needs, since it is too long for the one below. Lengths are >= 1. INVALID_ARGUMENT for a sample that is
// longer than all of `given`.
absl::StatusOr<std::vector<int64_t>> LengthBuckets(absl::Span<const int32_t> train, absl::Span<const int32_t> eval,
                                                   absl::Span<const int64_t> given);

// Those of `buckets` that hold any of the `lengths`, by which EpochBatches go. Every length is at most the last bucket.
std::vector<int64_t> UsedBuckets(absl::Span<const int32_t> lengths, absl::Span<const int64_t> buckets);

struct BucketBatch {
  // Index of the bucket.
  size_t bucket = 0;
  std::vector<int64_t> samples;
};

// Batches of the samples in `order` (indices into `lengths`), bucket by bucket from the shortest. Each bucket's samples
// fill batches in the order given; those left over, fewer than a batch, go on to the next bucket, as if they were that
// long, so that only the last batch of all can have fewer than `batch_size` samples. Every sample is at most as long as
// the last of `buckets`. Pure.
std::vector<BucketBatch> BucketBatches(absl::Span<const int32_t> lengths, absl::Span<const int64_t> buckets,
                                       absl::Span<const int64_t> order, int64_t batch_size);

// The batches of one epoch of training: BucketBatches of the whole batches' worth of samples that come first in
// EpochOrder(samples, seed, epoch) (without `shuffle`, in the dataset), so that the same samples are left out as
// without buckets; the batches are then put in an order drawn from (seed, epoch) too. Pure.
std::vector<BucketBatch> EpochBatches(absl::Span<const int32_t> lengths, absl::Span<const int64_t> buckets,
                                      int64_t batch_size, bool shuffle, uint64_t seed, int64_t epoch);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_LENGTH_BUCKETS_H_
