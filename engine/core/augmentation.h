// What becomes of a stored sample on its way to the network, value by value: the one definition, for whoever prepares
// batches, on the host or on a device.
#ifndef AMPD_ENGINE_CORE_AUGMENTATION_H_
#define AMPD_ENGINE_CORE_AUGMENTATION_H_

#include <cstdint>

#include "engine/core/host_device.h"
#include "engine/core/rng.h"

namespace ampd {

// Which part of a stored image, padded with zeros, a training sample shows.
struct ImageView {
  // The stored row and column that come first; below 0 and past the image there are zeros.
  int64_t top = 0;
  int64_t left = 0;
  // Each row of what is shown is read from its end.
  bool mirrored = false;
};

// A random crop of the padded image, then a flip, of images of this size. Constants of a training.
struct ImageAugmentation {
  int64_t height = 1;
  int64_t width = 1;
  int64_t channels = 1;
  // Zeros around the image, >= 0, below both sides.
  int64_t padding = 0;
  bool flip = false;
  // RngStream() of "data.random_crop" and "data.random_flip".
  uint32_t crop_stream = 0;
  uint32_t flip_stream = 0;

  // Else a sample shows what is stored.
  AMPD_HOST_DEVICE bool draws() const { return flip || padding > 0; }

  // Of the sample at `position` in the whole batch of attempted step `step`. Pure.
  AMPD_HOST_DEVICE ImageView ViewOf(uint64_t seed, uint64_t step, uint32_t position) const {
    ImageView view;
    if (padding > 0) {
      RngSequence crop(seed, crop_stream, step, position);
      const uint64_t places = 2 * static_cast<uint64_t>(padding) + 1;
      view.top = static_cast<int64_t>(crop.NextBelow(places)) - padding;
      view.left = static_cast<int64_t>(crop.NextBelow(places)) - padding;
    }
    if (flip) {
      RngSequence mirror(seed, flip_stream, step, position);
      view.mirrored = mirror.NextWord() >> 31 != 0;
    }
    return view;
  }

  // Where the stored pixel begins that `view` shows at (y, x), in values; -1: a zero.
  AMPD_HOST_DEVICE int64_t StoredPixel(const ImageView& view, int64_t y, int64_t x) const {
    const int64_t from_y = y + view.top, from_x = (view.mirrored ? width - 1 - x : x) + view.left;
    const bool inside = from_y >= 0 && from_y < height && from_x >= 0 && from_x < width;
    return inside ? (from_y * width + from_x) * channels : -1;
  }
};

// Computed in float64 and rounded once.
AMPD_HOST_DEVICE inline float Normalized(float value, double mean, double std) {
  return static_cast<float>((static_cast<double>(value) - mean) / std);
}

}  // namespace ampd

#endif  // AMPD_ENGINE_CORE_AUGMENTATION_H_
