#include "engine/train/text_sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace ampd::train {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

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

// Bytes of the well-formed character at the front of `s`; 0: there is none.
size_t CharacterBytes(absl::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t bytes = first >= 0xC2 && first <= 0xDF   ? 2
                       : first >= 0xE0 && first <= 0xEF ? 3
                       : first >= 0xF0 && first <= 0xF4 ? 4
                                                        : 0;
  if (bytes == 0 || s.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool overlong = (first == 0xE0 && byte(1) < 0xA0) || (first == 0xF0 && byte(1) < 0x90);
  const bool surrogate = first == 0xED && byte(1) > 0x9F;
  return overlong || surrogate || (first == 0xF4 && byte(1) > 0x8F) ? 0 : bytes;
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

std::string ValidUtf8(absl::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const size_t length = CharacterBytes(bytes);
    if (length == 0) {
      text += kReplacement;
      bytes.remove_prefix(1);
    } else {
      text.append(bytes.data(), length);
      bytes.remove_prefix(length);
    }
  }
  return text;
}

}  // namespace ampd::train
