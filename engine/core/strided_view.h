// Reading a dense tensor through another shape: broadcast, transposed, cut. Thread-safe.
#ifndef AMPD_ENGINE_CORE_STRIDED_VIEW_H_
#define AMPD_ENGINE_CORE_STRIDED_VIEW_H_

#include <cstdint>

#include "engine/core/shape.h"

namespace ampd {

// Element (i0, i1, ...) of the view is element offset + i0 * strides[0] + i1 * strides[1] + ... of the tensor. Strides
// may be 0 and negative. No axes: one element.
struct StridedView {
  Shape extents;
  Shape strides;
  int64_t offset = 0;

  int64_t size() const { return NumElements(extents); }
  // One run of the tensor from `offset` on.
  bool contiguous() const { return extents.empty() || (extents.size() == 1 && strides[0] == 1); }
};

// Strides of a dense tensor of `shape`.
Shape DenseStrides(const Shape& shape);

// Drops axes of extent one and joins neighbours that are one run.
StridedView Collapsed(const StridedView& view);

// A tensor of `from` as if broadcast to `to` (numpy's rules; the shapes fit). Collapsed.
StridedView BroadcastView(const Shape& from, const Shape& to);

// A tensor of `from` with its axes in the order `perm`. Collapsed.
StridedView TransposedView(const Shape& from, absl::Span<const int64_t> perm);

// Of a tensor of `whole`, `part` elements along each axis, from starts[d] on, steps[d] apart. Collapsed.
StridedView SliceView(const Shape& whole, const Shape& part, absl::Span<const int64_t> starts,
                      absl::Span<const int64_t> steps);

// The element of a view with linear index `i`.
inline int64_t At(const StridedView& view, int64_t i) {
  int64_t at = view.offset;
  for (size_t d = view.extents.size(); d-- > 1;) {
    at += i % view.extents[d] * view.strides[d];
    i /= view.extents[d];
  }
  return view.extents.empty() ? at : at + i * view.strides[0];
}

}  // namespace ampd

#endif  // AMPD_ENGINE_CORE_STRIDED_VIEW_H_
