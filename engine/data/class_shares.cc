#include "engine/data/class_shares.h"

#include <numeric>

namespace ampd::data {

std::vector<int64_t> SharesInTurn(absl::Span<const int64_t> sizes, int64_t limit) {
  std::vector<int64_t> shares(sizes.begin(), sizes.end());
  if (limit <= 0 || limit >= std::accumulate(shares.begin(), shares.end(), int64_t{0})) return shares;
  const auto taken = [&](int64_t rounds) {
    int64_t sum = 0;
    for (int64_t size : sizes) sum += std::min(size, rounds);
    return sum;
  };
  // As many whole rounds as fit, found by halving: classes may have many samples.
  int64_t rounds = 0, too_many = limit + 1;
  while (too_many - rounds > 1) {
    const int64_t middle = rounds + (too_many - rounds) / 2;
    (taken(middle) <= limit ? rounds : too_many) = middle;
  }
  int64_t left = limit - taken(rounds);
  for (int64_t& share : shares) {
    const bool one_more = share > rounds && left-- > 0;
    share = std::min(share, rounds + (one_more ? 1 : 0));
  }
  return shares;
}

}  // namespace ampd::data
