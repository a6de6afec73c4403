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

// Extents of a window sliding over [n, h, w, c]: ((h + pad_top + pad_bottom - kernel_h) / stride_h) + 1, and so for w.
absl::Status WindowOutput(ir::OpKind op, const OpCall& call, const Shape& input, const std::vector<int64_t>& kernel,
                          const std::vector<int64_t>& strides, const std::vector<int64_t>& pads, int64_t* out_h,
                          int64_t* out_w);

inline Shape ToShape(const std::vector<int64_t>& v) { return Shape(v.begin(), v.end()); }
inline std::vector<int64_t> ToInts(const Shape& s) { return {s.begin(), s.end()}; }

}  // namespace ampd::ops

#endif  // AMPD_ENGINE_OPS_RULES_H_
