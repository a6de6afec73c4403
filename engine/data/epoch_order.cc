#include "engine/data/epoch_order.h"

#include <numeric>
#include <utility>

#include "engine/core/rng.h"

namespace ampd::data {

std::vector<int64_t> EpochOrder(int64_t size, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  RngSequence rng(seed, "data.shuffle", static_cast<uint64_t>(epoch));
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.NextBelow(i)]);
  return order;
}

}  // namespace ampd::data
