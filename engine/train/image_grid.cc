#include "engine/train/image_grid.h"

#include <cmath>
#include <string>

namespace ampd::train {
namespace {

constexpr int64_t kGap = 2;
constexpr char kGrey = '\x80';

char Shade(float value, const GridOptions& options) {
  const float share = (value - options.low) / (options.high - options.low);
  // Also of NaN.
  if (!(share > 0)) return 0;
  return static_cast<char>(static_cast<uint8_t>(std::lround(255 * (share < 1 ? share : 1.0f))));
}

}  // namespace

Image ImageGrid(const TensorView& images, const GridOptions& options) {
  const int64_t height = images.shape[1], width = images.shape[2], channels = images.shape[3];
  Image grid{options.columns * (width + kGap) + kGap, options.rows * (height + kGap) + kGap, channels, {}};
  grid.pixels.assign(static_cast<size_t>(grid.width * grid.height * channels), kGrey);
  const float* values = images.as<float>();
  for (int64_t i = 0; i < options.rows * options.columns; ++i) {
    const int64_t top = kGap + i / options.columns * (height + kGap);
    const int64_t left = kGap + i % options.columns * (width + kGap);
    for (int64_t y = 0; y < height; ++y) {
      char* row = grid.pixels.data() + ((top + y) * grid.width + left) * channels;
      for (int64_t x = 0; x < width * channels; ++x) row[x] = Shade(*values++, options);
    }
  }
  return grid;
}

}  // namespace ampd::train
