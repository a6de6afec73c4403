#include "client/top/sparkline.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace ampd::client {
namespace {

constexpr int kLevels = 8;
const char* const kBlocks[kLevels] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
const char* const kAscii[kLevels] = {"_", ".", ":", "-", "=", "+", "*", "#"};

// One value a character.
std::vector<double> Gathered(const std::vector<double>& values, size_t columns) {
  if (values.size() <= columns) return values;
  std::vector<double> means;
  for (size_t i = 0; i < columns; ++i) {
    const size_t begin = i * values.size() / columns, end = (i + 1) * values.size() / columns;
    double sum = 0;
    int64_t count = 0;
    for (size_t j = begin; j < end; ++j) {
      if (!std::isfinite(values[j])) continue;
      sum += values[j];
      ++count;
    }
    means.push_back(count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(count));
  }
  return means;
}

}  // namespace

std::string Sparkline(const std::vector<double>& values, int columns, bool ascii) {
  if (columns <= 0) return "";
  const std::vector<double> shown = Gathered(values, static_cast<size_t>(columns));
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const double value : shown) {
    if (!std::isfinite(value)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  std::string line;
  for (const double value : shown) {
    if (!std::isfinite(value)) {
      line += "x";
      continue;
    }
    // In halves, whose difference cannot overflow.
    const double share = high > low ? (value / 2 - low / 2) / (high / 2 - low / 2) : 0.5;
    const int level = std::clamp(static_cast<int>(std::lround(share * (kLevels - 1))), 0, kLevels - 1);
    line += ascii ? kAscii[level] : kBlocks[level];
  }
  return line;
}

std::string Bar(double share, int columns) {
  const int inner = std::max(columns - 2, 0);
  const double clamped = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0.0;
  const auto full = static_cast<size_t>(std::lround(clamped * inner));
  return "[" + std::string(full, '#') + std::string(static_cast<size_t>(inner) - full, ' ') + "]";
}

}  // namespace ampd::client
