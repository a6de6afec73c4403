#include "engine/core/strided_view.h"

namespace ampd {

Shape DenseStrides(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

StridedView Collapsed(const StridedView& view) {
  StridedView y{{}, {}, view.offset};
  for (size_t d = 0; d < view.extents.size(); ++d) {
    if (view.extents[d] == 1) continue;
    if (!y.extents.empty() && y.strides.back() == view.strides[d] * view.extents[d]) {
      y.extents.back() *= view.extents[d];
      y.strides.back() = view.strides[d];
    } else {
      y.extents.push_back(view.extents[d]);
      y.strides.push_back(view.strides[d]);
    }
  }
  return y;
}

StridedView BroadcastView(const Shape& from, const Shape& to) {
  const Shape dense = DenseStrides(from);
  StridedView view{to, Shape(to.size(), 0), 0};
  for (size_t d = 0; d < from.size(); ++d) {
    if (from[d] != 1) view.strides[to.size() - from.size() + d] = dense[d];
  }
  return Collapsed(view);
}

StridedView TransposedView(const Shape& from, absl::Span<const int64_t> perm) {
  const Shape dense = DenseStrides(from);
  StridedView view;
  for (int64_t axis : perm) {
    view.extents.push_back(from[axis]);
    view.strides.push_back(dense[axis]);
  }
  return Collapsed(view);
}

StridedView SliceView(const Shape& whole, const Shape& part, absl::Span<const int64_t> starts,
                      absl::Span<const int64_t> steps) {
  const Shape dense = DenseStrides(whole);
  StridedView view{part, {}, 0};
  for (size_t d = 0; d < whole.size(); ++d) {
    view.offset += starts[d] * dense[d];
    // A step past the end is never taken; as it stands, the product could overflow.
    view.strides.push_back(part[d] == 1 ? 0 : dense[d] * steps[d]);
  }
  return Collapsed(view);
}

}  // namespace ampd
