// Many pictures in one.
#ifndef AMPD_ENGINE_TRAIN_IMAGE_GRID_H_
#define AMPD_ENGINE_TRAIN_IMAGE_GRID_H_

#include <cstdint>

#include "engine/core/tensor.h"
#include "engine/train/png.h"

namespace ampd::train {

struct GridOptions {
  int64_t rows = 1;
  int64_t columns = 1;
  // Shown as black and white; what lies beyond is cut off, NaN is black. low < high.
  float low = -1;
  float high = 1;
};

// `images`: f32 [rows * columns, height, width, 1 or 3], row by row, on the host. Two grey pixels stand between
// pictures and around them.
Image ImageGrid(const TensorView& images, const GridOptions& options);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_IMAGE_GRID_H_
