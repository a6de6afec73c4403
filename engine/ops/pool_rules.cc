#include "engine/ops/pool_rules.h"

#include <vector>

#include "engine/core/status.h"
#include "engine/ops/rules.h"

namespace ampd::ops {

using ir::OpKind;

absl::Status PoolOutput(OpKind op, const OpCall& call, const Shape& x, Shape* y) {
  std::vector<int64_t> size;
  Window window;
  AMPD_RETURN_IF_ERROR(RequireInts(op, call, "size", 2, 1, &size));
  AMPD_RETURN_IF_ERROR(ReadWindow(op, call, &window));
  if (x.size() != 4) return BadNode(op, call, absl::StrCat("needs an image [n, h, w, c], has ", ShapeString(x)));
  int64_t p = 0, q = 0;
  AMPD_RETURN_IF_ERROR(WindowOutput(op, call, x, size, window, &p, &q));
  // A window that lies wholly in the padding would have no value.
  for (int side = 0; side < 4; ++side) {
    if (window.pads[side] < window.Span(size, side % 2)) continue;
    return BadNode(op, call,
                   absl::StrCat("pads ", ShapeString(window.pads), " reach the window's size ", ShapeString(size)));
  }
  *y = {x[0], p, q, x[3]};
  return absl::OkStatus();
}

double WindowCells(const OpCall& call) {
  const std::vector<int64_t> size = call.attributes.Ints("size");
  return static_cast<double>(size[0]) * static_cast<double>(size[1]);
}

}  // namespace ampd::ops
