// The order in which an epoch takes a dataset's samples.
#ifndef AMPD_ENGINE_DATA_EPOCH_ORDER_H_
#define AMPD_ENGINE_DATA_EPOCH_ORDER_H_

#include <cstdint>
#include <vector>

namespace ampd::data {

// The samples of one epoch (from 1) in training order: a permutation of 0..size-1 drawn by Fisher-Yates from (seed,
// epoch). Pure.
std::vector<int64_t> EpochOrder(int64_t size, uint64_t seed, int64_t epoch);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_EPOCH_ORDER_H_
