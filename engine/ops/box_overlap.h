// Boxes and priors of single-shot detectors, as kernels of every backend compute them, so that all decide alike.
#ifndef AMPD_ENGINE_OPS_BOX_OVERLAP_H_
#define AMPD_ENGINE_OPS_BOX_OVERLAP_H_

#include <cmath>
#include <cstdint>

#include "engine/core/host_device.h"

namespace ampd::ops {

// Numbers of a box in a sample's targets: class, x0, y0, x1, y1.
inline constexpr int64_t kBoxNumbers = 5;
// Classes at or above it are no classes.
inline constexpr float kMaxBoxClass = 1 << 20;

// Corners in shares of the image's sides.
struct Corners {
  double x0, y0, x1, y1;
};

// Of a prior (center x, center y, width, height).
AMPD_HOST_DEVICE inline Corners CornersOfPrior(const float* prior) {
  const double w = static_cast<double>(prior[2]) / 2, h = static_cast<double>(prior[3]) / 2;
  const double x = static_cast<double>(prior[0]), y = static_cast<double>(prior[1]);
  return {x - w, y - h, x + w, y + h};
}

// Of a target box (class, x0, y0, x1, y1).
AMPD_HOST_DEVICE inline Corners CornersOfBox(const float* box) {
  return {static_cast<double>(box[1]), static_cast<double>(box[2]), static_cast<double>(box[3]),
          static_cast<double>(box[4])};
}

// Whether a target stands for a box at all: a class of at least 0 and an area.
AMPD_HOST_DEVICE inline bool IsBox(const float* box) { return box[0] >= 0 && box[3] > box[1] && box[4] > box[2]; }

// Whether a target is neither a box nor none: a number that is not finite, or no class.
AMPD_HOST_DEVICE inline bool IsBroken(const float* box) {
  bool broken = box[0] >= kMaxBoxClass;
  for (int64_t i = 0; i < kBoxNumbers; ++i) broken = broken || !(box[i] - box[i] == 0);
  return broken;
}

// The area of the intersection over that of the union (Jaccard's index).
AMPD_HOST_DEVICE inline double Overlap(const Corners& a, const Corners& b) {
  const double w = (a.x1 < b.x1 ? a.x1 : b.x1) - (a.x0 > b.x0 ? a.x0 : b.x0);
  const double h = (a.y1 < b.y1 ? a.y1 : b.y1) - (a.y0 > b.y0 ? a.y0 : b.y0);
  if (!(w > 0 && h > 0)) return 0;
  const double both = w * h;
  return both / ((a.x1 - a.x0) * (a.y1 - a.y0) + (b.x1 - b.x0) * (b.y1 - b.y0) - both);
}

// What a prior predicts of a box (Liu et al. 2016, section 2.2, over the variances): two offsets of its center and two
// logarithms of its sides.
AMPD_HOST_DEVICE inline void EncodeBox(const float* prior, const Corners& box, double center_variance,
                                       double size_variance, float* offsets) {
  for (int axis = 0; axis < 2; ++axis) {
    const double low = axis == 0 ? box.x0 : box.y0, high = axis == 0 ? box.x1 : box.y1;
    const double side = static_cast<double>(prior[2 + axis]);
    offsets[axis] = static_cast<float>(((low + high) / 2 - static_cast<double>(prior[axis])) / side / center_variance);
    offsets[2 + axis] = static_cast<float>(std::log((high - low) / side) / size_variance);
  }
}

}  // namespace ampd::ops

#endif  // AMPD_ENGINE_OPS_BOX_OVERLAP_H_
