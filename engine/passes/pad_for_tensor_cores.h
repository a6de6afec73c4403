// Gives products on 16- and 8-bit operands the extents that tensor cores want.
#ifndef AMPD_ENGINE_PASSES_PAD_FOR_TENSOR_CORES_H_
#define AMPD_ENGINE_PASSES_PAD_FOR_TENSOR_CORES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/ir/graph.h"

namespace ampd::passes {

// What extents are padded to; 1 leaves them alone. A backend says what its hardware wants (runtime::Backend::padding).
struct PaddingPolicy {
  int64_t multiple_16bit = 1;
  int64_t multiple_8bit = 1;

  bool enabled() const { return multiple_16bit > 1 || multiple_8bit > 1; }
};

// 16 bytes, which is how rows of operands must be aligned for every tensor-core kernel of cuBLASLt and cuDNN.
inline constexpr PaddingPolicy kTensorCorePadding{8, 16};

// A product whose padded volume (rows x inner x columns, or pixels x window x channels x filters) is more than this
// many times its own is left alone: a tensor core's fp16 peak is four times that of the same chip's vector units (A100:
// 312 and 78 TFLOP/s by NVIDIA's data sheet), so more zeros than that cost more than they bring. Hence an extent of 1
// is never padded: such a product reads each number once, and memory is its limit.
inline constexpr int64_t kLargestPaddedGrowth = 4;

struct PaddedExtent {
  std::string node;
  std::string layer;
  ir::Stage stage = ir::Stage::kForward;
  // "rows", "inner" or "columns" of a matrix product; "channels" or "filters" of a convolution: the last axis of the
  // image and of the result, of a transposed convolution the other way round.
  std::string dimension;
  int64_t from = 0;
  int64_t to = 0;
};

// Pads the last axis of each operand and result of matmul, conv2d and conv_transpose2d and of their gradients, where
// the operands are 16- or 8-bit. Padding is zeros in storage: whatever else reads a value (norms, means, most losses,
// softmax, random streams, quantization's amax, gradient accumulation, graph outputs) gets its logical extents, cut out
// by a slice. Cuts and paddings that would follow each other cancel: elementwise operations that are finite at 0 and
// sums over rows run on padded values, whose padding is zeroed again before a product reads it; softmax cross-entropies
// are told how many of the logits' columns are classes, and make gradients whose padding is zeros. Parameters stay as
// they are, and so do their gradients, moments and checkpoints: passes/publish_parameters makes padding a parameter
// part of its published copy.
//
// Left alone: f32 operands (TF32 too), convolutions in groups (a group's padding would lie between the channels of
// another), the attention op (heads stand next to each other on one axis) and recurrences (four gates on one axis,
// whose weights their kernels publish in a layout of their own); the products around these two are padded.
//
// Runs on a differentiated graph (or a forward one), behind passes/quantize_fp8 and before publish_parameters. Results
// have the same values: zeros are added to sums, which changes bits only where a kernel adds up in another order.
// A row of a product that is not finite has NaN as padding; all of the row is then not finite. `padded` may be
// null; else it gets what was done, in the graph's order.
absl::StatusOr<ir::Graph> PadForTensorCores(ir::Graph graph, const PaddingPolicy& policy,
                                            std::vector<PaddedExtent>* padded = nullptr);

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_PAD_FOR_TENSOR_CORES_H_
