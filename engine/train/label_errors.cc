#include "engine/train/label_errors.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace ampd::train {

std::vector<int32_t> BestPathLabels(absl::Span<const float> logits, int64_t classes, int32_t blank) {
  std::vector<int32_t> labels;
  int32_t before = blank;
  for (size_t step = 0; step + static_cast<size_t>(classes) <= logits.size(); step += static_cast<size_t>(classes)) {
    int32_t best = 0;
    for (int32_t c = 1; c < classes; ++c) {
      const float value = logits[step + static_cast<size_t>(c)], largest = logits[step + static_cast<size_t>(best)];
      if (value > largest || largest != largest) best = c;
    }
    if (best != before && best != blank) labels.push_back(best);
    before = best;
  }
  return labels;
}

int64_t EditDistance(absl::Span<const int32_t> a, absl::Span<const int32_t> b) {
  // Distances of the part of `a` so far to each beginning of `b`.
  std::vector<int64_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    int64_t diagonal = row[0];
    row[0] = static_cast<int64_t>(i) + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const int64_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

void SpellingErrors::Add(absl::Span<const int32_t> found, absl::Span<const int32_t> labels) {
  const int64_t distance = EditDistance(found, labels);
  errors_ += static_cast<double>(distance);
  labels_ += static_cast<double>(labels.size());
  exact_ += distance == 0 ? 1 : 0;
  samples_ += 1;
}

double SpellingErrors::LabelErrorRate() const {
  return labels_ == 0 ? std::numeric_limits<double>::quiet_NaN() : errors_ / labels_;
}
double SpellingErrors::ExactMatch() const { return samples_ == 0 ? 0 : exact_ / samples_; }

}  // namespace ampd::train
