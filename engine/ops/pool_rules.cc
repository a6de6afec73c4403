#include "engine/ops/pool_rules.h"

#include <vector>

#include "engine/core/status.h"
#include "engine/ops/rules.h"

namespace ampd::ops {

using ir::OpKind;

absl::Status PoolOutput(OpKind op, const OpCall& call, const Shape& x, Shape* y) {
  std::vector<int64_t> size, strides, pads;
  AMPD_RETURN_IF_ERROR(RequireInts(op, call, "size", 2, 1, &size));
  AMPD_RETURN_IF_ERROR(RequireInts(op, call, "strides", 2, 1, &strides));
  AMPD_RETURN_IF_ERROR(RequireInts(op, call, "pads", 4, 0, &pads));
  if (x.size() != 4) return BadNode(op, call, absl::StrCat("needs an image [n, h, w, c], has ", ShapeString(x)));
  // A window that lies wholly in the padding would have no value.
  if (pads[0] >= size[0] || pads[2] >= size[0] || pads[1] >= size[1] || pads[3] >= size[1]) {
    return BadNode(op, call, absl::StrCat("pads ", ShapeString(pads), " reach the window's size ", ShapeString(size)));
  }
  int64_t p = 0, q = 0;
  AMPD_RETURN_IF_ERROR(WindowOutput(op, call, x, size, strides, pads, &p, &q));
  *y = {x[0], p, q, x[3]};
  return absl::OkStatus();
}

}  // namespace ampd::ops
