// What `limit` leaves of sources whose order is by class. Used by readers.
#ifndef AMPD_ENGINE_DATA_CLASS_SHARES_H_
#define AMPD_ENGINE_DATA_CLASS_SHARES_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace ampd::data {

// How many samples of each class are taken where one of each class is in turn, class by class, until there are `limit`
// (0: all) or no more. `sizes`, how many each class has, are >= 0 and their sum does not overflow.
std::vector<int64_t> SharesInTurn(absl::Span<const int64_t> sizes, int64_t limit);

// Leaves the first shares[c] samples of each class c, in their order. `class_of` gives a sample's class, which is in
// range.
template <typename T, typename ClassOf>
void KeepShares(const std::vector<int64_t>& shares, const ClassOf& class_of, std::vector<T>& samples) {
  std::vector<int64_t> left = shares;
  const auto beyond = [&](const T& sample) { return left[static_cast<size_t>(class_of(sample))]-- <= 0; };
  samples.erase(std::remove_if(samples.begin(), samples.end(), beyond), samples.end());
}

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_CLASS_SHARES_H_
