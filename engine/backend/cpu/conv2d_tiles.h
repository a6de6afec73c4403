// Internal to the CPU backend: bf16 convolutions on a processor's matrix tiles. oneDNN 2.6's own use them for far less
// than they can do, above all for gradients.
//
// A tile of a convolution is 16 images at one pixel by 32 of their channels, or one cell of 16 filters: for each pair
// of a pixel and a cell that meet, there is a product of tiles, and what lies outside the image costs nothing.
#ifndef AMPD_ENGINE_BACKEND_CPU_CONV2D_TILES_H_
#define AMPD_ENGINE_BACKEND_CPU_CONV2D_TILES_H_

#include <cstdint>
#include <memory>

#include "engine/runtime/kernel_table.h"

namespace ampd::cpu {

// Whether MakeConvTiles can compute `desc`, a kConv2d, kConv2dGradInput, kConvTranspose2d or kConv2dGradFilter: all of
// bf16, in one group, with filters (of all but the last) that are a parameter.
bool TilesCanConvolve(const runtime::NodeDesc& desc);

// Whether that is faster than oneDNN's convolution. Depends on the node and on HasTiles() alone, so that equal machines
// compute equal bits.
bool TilesConvolveFaster(const runtime::NodeDesc& desc);

struct ConvTileLimits {
  // Of packed operands at a time, where that leaves as many images as an operand's tile is deep.
  int64_t packed_bytes = int64_t{16} << 20;
  // Of both operands of a filter's gradient: what is read for a cell before that is read again for the next.
  int64_t rows_bytes = int64_t{1} << 20;
  // Of an image's windows: what is read for a row of results before that is read again for the next.
  int64_t window_bytes = int64_t{1} << 20;
};

// Takes what TilesCanConvolve allows, once HasTiles() has said that there are any.
std::unique_ptr<runtime::Kernel> MakeConvTiles(const runtime::NodeDesc& desc, const ConvTileLimits& limits = {});

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_CONV2D_TILES_H_
