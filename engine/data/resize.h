// Bilinear resizing with antialiasing, as torchvision's transforms on float tensors and, but for its rounding in
// between, PIL's.
#ifndef AMPD_ENGINE_DATA_RESIZE_H_
#define AMPD_ENGINE_DATA_RESIZE_H_

#include <cstdint>

#include "absl/types/span.h"
#include "ampd/v1/data.pb.h"
#include "engine/data/dataset.h"

namespace ampd::data {

// How one side of an image is resized: the `extent` places from `begin` on become `resized` places, of which those
// from `first` on are kept. Place i of the result is at x = (i + 0.5) * extent / resized of the window, and is the sum
// of the window's places j weighted by max(0, 1 - |j + 0.5 - x| / s), s = max(1, extent / resized), the weights scaled
// to add up to 1.
struct ResizedSide {
  int64_t begin = 0;
  int64_t extent = 1;
  int64_t resized = 1;
  int64_t first = 0;
};

struct ResizeWindow {
  ResizedSide vertical;
  ResizedSide horizontal;
};

// The window of an image of these sides that becomes size x size: the whole (STRETCH), or so that the shorter side
// becomes `size` and the middle of the longer is kept (CENTER_CROP), with torchvision's rounding.
ResizeWindow PlainWindow(const v1::ImageTransform& spec, int64_t height, int64_t width);

// torchvision's RandomResizedCrop: up to ten draws of area and proportions, the first that fits at a random place; if
// none does, the largest window in the middle whose proportions are allowed.
ResizeWindow RandomWindow(const v1::ImageTransform& spec, int64_t height, int64_t width, const Draw& draw);

// Resizes the image of `channels` channels, [height, width, channels] of bytes or floats, of which `window` lies
// within. `out` has size * size * channels places, [size, size, channels]; size >= 1. Sums are in float, in one fixed
// order; of bytes the results are rounded to whole numbers 0 to 255, half to even.
void Resize(absl::Span<const uint8_t> image, int64_t width, int64_t channels, const ResizeWindow& window, int64_t size,
            absl::Span<float> out);
void Resize(absl::Span<const float> image, int64_t width, int64_t channels, const ResizeWindow& window, int64_t size,
            absl::Span<float> out);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_RESIZE_H_
