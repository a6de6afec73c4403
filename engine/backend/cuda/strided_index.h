// A StridedView as kernels read it: from a linear index to the element of the tensor. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_STRIDED_INDEX_H_
#define AMPD_ENGINE_BACKEND_CUDA_STRIDED_INDEX_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/core/strided_view.h"

namespace ampd::cuda {

// Axes that a view may have once it is collapsed.
inline constexpr int kMaxAxes = 8;

// Division by a number known beforehand, as a multiplication and a shift: Granlund and Montgomery, "Division by
// invariant integers using multiplication", PLDI 1994, figure 4.1. For dividends and divisors below 2^31, so that the
// sum fits.
struct Divisor {
  uint32_t divisor = 1, multiplier = 1, shift = 0;

  Divisor() = default;
  // 0, of an axis without elements, counts as 1.
  explicit Divisor(int64_t d) : divisor(d == 0 ? 1 : static_cast<uint32_t>(d)) {
    while ((uint64_t{1} << shift) < divisor) ++shift;
    multiplier = static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor) / divisor + 1);
  }
  __device__ __forceinline__ uint32_t Divide(uint32_t n) const { return (__umulhi(n, multiplier) + n) >> shift; }
};

// Plain data, passed to kernels by value.
struct StridedIndex {
  int32_t axes = 0;
  // Past 2^31 elements, where divisions are 64-bit ones.
  bool wide = false;
  int64_t extents[kMaxAxes] = {};
  int64_t strides[kMaxAxes] = {};
  Divisor divisors[kMaxAxes] = {};
  int64_t offset = 0;

  // The element of the tensor that is the view's `i`th. Most views have two axes: unrolling would only be code.
  __device__ __forceinline__ int64_t At(int64_t i) const {
    int64_t at = offset;
    if (axes == 0) return at;
    if (wide) {
#pragma unroll 1
      for (int d = axes; d-- > 1; i /= extents[d]) at += i % extents[d] * strides[d];
      return at + i * strides[0];
    }
    uint32_t left = static_cast<uint32_t>(i);
#pragma unroll 1
    for (int d = axes; d-- > 1;) {
      const uint32_t quotient = divisors[d].Divide(left);
      at += static_cast<int64_t>(left - quotient * divisors[d].divisor) * strides[d];
      left = quotient;
    }
    return at + static_cast<int64_t>(left) * strides[0];
  }
};

// UNIMPLEMENTED when more than kMaxAxes axes are left; `what` names the op or node.
inline absl::StatusOr<StridedIndex> MakeStridedIndex(absl::string_view what, const StridedView& view) {
  if (view.extents.size() > kMaxAxes) {
    return absl::UnimplementedError(absl::StrCat("[cuda] ", what, ": a view of ", view.extents.size(),
                                                 " axes that cannot be joined, at most ", kMaxAxes, " can be read"));
  }
  StridedIndex index;
  index.axes = static_cast<int32_t>(view.extents.size());
  index.wide = view.size() > int64_t{1} << 31;
  index.offset = view.offset;
  for (size_t d = 0; d < view.extents.size(); ++d) {
    index.extents[d] = view.extents[d];
    index.strides[d] = view.strides[d];
    if (!index.wide) index.divisors[d] = Divisor(view.extents[d]);
  }
  return index;
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_STRIDED_INDEX_H_
