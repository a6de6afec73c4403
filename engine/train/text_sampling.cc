#include "engine/train/text_sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace ampd::train {
namespace {

// The indices to draw from, ascending.
std::vector<int> Candidates(absl::Span<const float> logits, int64_t top_k) {
  std::vector<int> indices(logits.size());
  std::iota(indices.begin(), indices.end(), 0);
  if (top_k < 1 || top_k >= static_cast<int64_t>(logits.size())) return indices;
  std::stable_sort(indices.begin(), indices.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  indices.resize(static_cast<size_t>(top_k));
  std::sort(indices.begin(), indices.end());
  return indices;
}

}  // namespace

int SampleIndex(absl::Span<const float> logits, double temperature, int64_t top_k, float uniform) {
  float largest = -std::numeric_limits<float>::infinity();
  for (float logit : logits) {
    if (!(logit <= std::numeric_limits<float>::max())) return -1;
    largest = std::max(largest, logit);
  }
  if (!std::isfinite(largest)) return -1;
  const int first = static_cast<int>(std::find(logits.begin(), logits.end(), largest) - logits.begin());
  if (temperature <= 0) return first;
  const std::vector<int> candidates = Candidates(logits, top_k);
  std::vector<double> shares;
  double sum = 0;
  for (int i : candidates) {
    sum += std::exp((static_cast<double>(logits[i]) - static_cast<double>(largest)) / temperature);
    shares.push_back(sum);
  }
  const auto drawn = std::upper_bound(shares.begin(), shares.end(), static_cast<double>(uniform) * sum);
  // Rounding can leave the draw at the very sum.
  return drawn == shares.end() ? first : candidates[static_cast<size_t>(drawn - shares.begin())];
}

}  // namespace ampd::train
