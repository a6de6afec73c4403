// Helpers shared by shape rules and gradients; for files in engine/ops.
#ifndef AMPD_ENGINE_OPS_RULES_H_
#define AMPD_ENGINE_OPS_RULES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/ir/graph.h"
#include "engine/ops/gradient_context.h"
#include "engine/ops/op_def.h"

namespace ampd::ops {

// INVALID_ARGUMENT "[op] message, node NAME".
absl::Status BadNode(ir::OpKind op, const OpCall& call, const std::string& message);

// INVALID_ARGUMENT unless input `i` has `rank` extents.
absl::Status RequireRank(ir::OpKind op, const OpCall& call, int i, int rank);

// INVALID_ARGUMENT unless input `i` has `shape`.
absl::Status RequireShape(ir::OpKind op, const OpCall& call, int i, const Shape& shape);

// The integers of attribute `name`, which must be `count` numbers >= `minimum`.
absl::Status RequireInts(ir::OpKind op, const OpCall& call, const char* name, size_t count, int64_t minimum,
                         std::vector<int64_t>* out);

// Output has the first input's type.
absl::Status SameAsFirst(const OpCall& call, std::vector<ir::TensorType>* outputs);

// numpy's broadcasting of inputs `first` to the last: axes are matched from the end, an extent of one is repeated.
absl::Status BroadcastShape(ir::OpKind op, const OpCall& call, size_t first, Shape* shape);

// Attribute `name` (default `fallback`) as an axis of `rank` axes: negative counts from the end.
absl::Status RequireAxis(ir::OpKind op, const OpCall& call, const char* name, int64_t fallback, size_t rank,
                         size_t* axis);

// The attribute as RequireAxis() reads it, of a node that it accepted.
inline size_t AxisOf(const ir::Attributes& attributes, const char* name, int64_t fallback, size_t rank) {
  const int64_t axis = attributes.Int(name, fallback);
  return static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(rank) : axis);
}

// The dtype a gradient op that sums should give input `i`: f32 where only a parameter receives it, else the input's.
DType SumDType(GradientContext& context, int i);

// `gradient` (-1 passes through), of the shape that input `i` was broadcast to, summed to the input's own. Sums run in
// fp32 or better; one that only a parameter receives stays f32, others get the input's dtype.
ir::ValueId SumToInput(GradientContext& context, ir::ValueId gradient, int i, const std::string& suffix);

// How a window moves over an image: attributes `strides` [2], `pads` [top, left, bottom, right] and `dilations` [2]
// (absent: [1, 1]).
struct Window {
  std::vector<int64_t> strides, pads, dilations;

  // Cells that a window of `size` spans along `axis` (0 height, 1 width), holes included.
  int64_t Span(const std::vector<int64_t>& size, int axis) const { return (size[axis] - 1) * dilations[axis] + 1; }
};

// INVALID_ARGUMENT unless each number is in its range; none is above 2^30, so that sums and products of two stay exact.
absl::Status ReadWindow(ir::OpKind op, const OpCall& call, Window* window);

// Extents of a window of `size` sliding over [n, h, w, c]: (h + pad_top + pad_bottom - span) / stride + 1, and so for
// w.
absl::Status WindowOutput(ir::OpKind op, const OpCall& call, const Shape& input, const std::vector<int64_t>& size,
                          const Window& window, int64_t* out_h, int64_t* out_w);

// Attribute `groups` (absent: 1), which must be at least 1.
absl::Status ReadGroups(ir::OpKind op, const OpCall& call, int64_t* groups);

inline Shape ToShape(const std::vector<int64_t>& v) { return Shape(v.begin(), v.end()); }
inline std::vector<int64_t> ToInts(const Shape& s) { return {s.begin(), s.end()}; }

}  // namespace ampd::ops

#endif  // AMPD_ENGINE_OPS_RULES_H_
