#include "engine/data/resize.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/core/rng.h"

namespace ampd::data {
namespace {

constexpr int kTries = 10;

// What one place of the result is made of: places [begin, begin + weights.size()) of the image.
struct Taps {
  int64_t begin = 0;
  std::vector<float> weights;
};

Taps TapsOf(const ResizedSide& side, int64_t place) {
  const double scale = static_cast<double>(side.extent) / static_cast<double>(side.resized);
  const double support = std::max(scale, 1.0);
  const double center = (static_cast<double>(place) + 0.5) * scale;
  const int64_t low = std::max<int64_t>(0, static_cast<int64_t>(std::floor(center - support + 0.5)));
  const int64_t high = std::min(side.extent, static_cast<int64_t>(std::floor(center + support + 0.5)));
  std::vector<double> weights;
  double sum = 0;
  for (int64_t j = low; j < high; ++j) {
    weights.push_back(std::max(0.0, 1 - std::abs(static_cast<double>(j) + 0.5 - center) / support));
    sum += weights.back();
  }
  Taps taps = {side.begin + low, {}};
  for (double weight : weights) taps.weights.push_back(static_cast<float>(weight / sum));
  return taps;
}

std::vector<Taps> TapsOf(const ResizedSide& side, int64_t first, int64_t count) {
  std::vector<Taps> taps;
  taps.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) taps.push_back(TapsOf(side, first + i));
  return taps;
}

template <typename T>
void ResizeRow(const T* row, int64_t channels, const std::vector<Taps>& taps, float* out) {
  for (const Taps& of : taps) {
    const T* from = row + of.begin * channels;
    for (int64_t c = 0; c < channels; ++c) {
      float sum = 0;
      for (size_t k = 0; k < of.weights.size(); ++k) {
        sum += of.weights[k] * static_cast<float>(from[static_cast<int64_t>(k) * channels + c]);
      }
      *out++ = sum;
    }
  }
}

// Row by row, so that memory beyond the result is one row: each row of the image is resized once and added to the rows
// of the result that it is part of.
template <typename T>
void ResizeImage(const T* image, int64_t width, int64_t channels, const ResizeWindow& window, int64_t size,
                 absl::Span<float> out) {
  const std::vector<Taps> across = TapsOf(window.horizontal, window.horizontal.first, size);
  const std::vector<Taps> down = TapsOf(window.vertical, window.vertical.first, size);
  const size_t row_values = static_cast<size_t>(size * channels);
  std::vector<float> row(row_values);
  std::fill(out.begin(), out.end(), 0.0f);
  // Taps begin and end in ascending order.
  size_t oldest = 0;
  const auto end_of = [&](size_t i) { return down[i].begin + static_cast<int64_t>(down[i].weights.size()); };
  for (int64_t y = down.front().begin; y < end_of(down.size() - 1); ++y) {
    while (end_of(oldest) <= y) ++oldest;
    if (down[oldest].begin > y) continue;
    ResizeRow(image + y * width * channels, channels, across, row.data());
    for (size_t i = oldest; i < down.size() && down[i].begin <= y; ++i) {
      if (end_of(i) <= y) continue;
      const float weight = down[i].weights[static_cast<size_t>(y - down[i].begin)];
      float* to = out.data() + i * row_values;
      for (size_t v = 0; v < row_values; ++v) to[v] += weight * row[v];
    }
  }
}

ResizeWindow Whole(int64_t top, int64_t left, int64_t height, int64_t width, int64_t size) {
  return {{top, height, size, 0}, {left, width, size, 0}};
}

int64_t Rounded(double value) { return static_cast<int64_t>(std::nearbyint(value)); }

ResizeWindow MiddleWindow(double min_ratio, double max_ratio, int64_t height, int64_t width, int64_t size) {
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  int64_t h = height, w = width;
  if (ratio < min_ratio) {
    h = std::min(height, std::max<int64_t>(1, Rounded(static_cast<double>(width) / min_ratio)));
  } else if (ratio > max_ratio) {
    w = std::min(width, std::max<int64_t>(1, Rounded(static_cast<double>(height) * max_ratio)));
  }
  return Whole((height - h) / 2, (width - w) / 2, h, w, size);
}

}  // namespace

ResizeWindow PlainWindow(const v1::ImageTransform& spec, int64_t height, int64_t width) {
  const int64_t size = spec.size();
  if (spec.resize() == v1::ImageTransform::STRETCH) return Whole(0, 0, height, width, size);
  const auto side = [size](int64_t extent, int64_t shorter) {
    const int64_t resized = size * extent / shorter;
    return ResizedSide{0, extent, resized, Rounded(static_cast<double>(resized - size) / 2)};
  };
  const int64_t shorter = std::min(height, width);
  return {side(height, shorter), side(width, shorter)};
}

ResizeWindow RandomWindow(const v1::ImageTransform& spec, int64_t height, int64_t width, const Draw& draw) {
  const v1::RandomResizedCrop& crop = spec.random_resized_crop();
  const double min_ratio = crop.has_min_ratio() ? crop.min_ratio() : 3.0 / 4;
  const double max_ratio = crop.has_max_ratio() ? crop.max_ratio() : 4.0 / 3;
  const double min_area = crop.has_min_area() ? crop.min_area() : 0.08;
  const double max_area = crop.has_max_area() ? crop.max_area() : 1;
  const double area = static_cast<double>(height) * static_cast<double>(width);
  RngSequence rng(draw.seed, "data.random_resized_crop", static_cast<uint64_t>(draw.step),
                  static_cast<uint32_t>(draw.position));
  const auto uniform = [&rng](double low, double high) { return low + (high - low) * rng.NextUniform(); };
  for (int i = 0; i < kTries; ++i) {
    const double part = area * uniform(min_area, max_area);
    const double ratio = std::exp(uniform(std::log(min_ratio), std::log(max_ratio)));
    const double w = std::nearbyint(std::sqrt(part * ratio)), h = std::nearbyint(std::sqrt(part / ratio));
    if (w < 1 || h < 1 || w > static_cast<double>(width) || h > static_cast<double>(height)) continue;
    const int64_t window_h = static_cast<int64_t>(h), window_w = static_cast<int64_t>(w);
    const int64_t top = static_cast<int64_t>(rng.NextBelow(static_cast<uint64_t>(height - window_h + 1)));
    const int64_t left = static_cast<int64_t>(rng.NextBelow(static_cast<uint64_t>(width - window_w + 1)));
    return Whole(top, left, window_h, window_w, spec.size());
  }
  return MiddleWindow(min_ratio, max_ratio, height, width, spec.size());
}

void Resize(absl::Span<const uint8_t> image, int64_t width, int64_t channels, const ResizeWindow& window, int64_t size,
            absl::Span<float> out) {
  ResizeImage(image.data(), width, channels, window, size, out);
  for (float& value : out) value = std::min(255.0f, std::max(0.0f, std::nearbyint(value)));
}

void Resize(absl::Span<const float> image, int64_t width, int64_t channels, const ResizeWindow& window, int64_t size,
            absl::Span<float> out) {
  ResizeImage(image.data(), width, channels, window, size, out);
}

}  // namespace ampd::data
