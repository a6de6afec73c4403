#include "engine/train/disk_layout.h"

#include <cstdint>
#include <cstring>

namespace ampd::train {
namespace {

// Either layout is, row by row, the transposition of [pixels, channels] to [channels, pixels].
struct Rows {
  int64_t rows = 1;
  int64_t pixels = 1;
  int64_t channels = 1;
};

Rows RowsOf(const ir::Persistent& tensor) {
  const Shape& shape = tensor.type.shape;
  switch (tensor.layout) {
    case ir::DiskLayout::kSame:
      break;
    case ir::DiskLayout::kConvFilter:
      return {shape[0], shape[1] * shape[2], shape[3]};
    case ir::DiskLayout::kChannelsLast: {
      const int64_t pixels = tensor.flattened[0] * tensor.flattened[1], channels = tensor.flattened[2];
      return {NumElements(shape) / (pixels * channels), pixels, channels};
    }
  }
  return {1, 1, NumElements(shape)};
}

// [rows, a, b] -> [rows, b, a], elements of `width` bytes.
void TransposeRows(const void* from, void* to, int64_t rows, int64_t a, int64_t b, int64_t width) {
  const char* source = static_cast<const char*>(from);
  char* target = static_cast<char*>(to);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < a; ++i) {
      for (int64_t j = 0; j < b; ++j) {
        std::memcpy(target + ((r * b + j) * a + i) * width, source + ((r * a + i) * b + j) * width,
                    static_cast<size_t>(width));
      }
    }
  }
}

}  // namespace

Shape DiskShape(const ir::Persistent& tensor) {
  const Shape& s = tensor.type.shape;
  return tensor.layout == ir::DiskLayout::kConvFilter ? Shape{s[0], s[3], s[1], s[2]} : s;
}

void ToDisk(const ir::Persistent& tensor, const void* memory, void* disk) {
  const Rows r = RowsOf(tensor);
  TransposeRows(memory, disk, r.rows, r.pixels, r.channels, SizeOf(tensor.type.dtype));
}

void FromDisk(const ir::Persistent& tensor, const void* disk, void* memory) {
  const Rows r = RowsOf(tensor);
  TransposeRows(disk, memory, r.rows, r.channels, r.pixels, SizeOf(tensor.type.dtype));
}

}  // namespace ampd::train
