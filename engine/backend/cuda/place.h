// One tensor placed in another that holds a constant everywhere else: pads, cuts, and gradients of slices. One pass
// that writes each element once.
#ifndef AMPD_ENGINE_BACKEND_CUDA_PLACE_H_
#define AMPD_ENGINE_BACKEND_CUDA_PLACE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/backend/cuda/context.h"
#include "engine/core/dtype.h"
#include "engine/core/shape.h"

namespace ampd::cuda {

// Where x lies in y, axis by axis: its element p at starts[d] + p * steps[d]; what falls outside y is left out.
// Immutable; cheap to copy.
class Placement {
 public:
  struct Axis {
    int64_t extent;  // of y
    int64_t count;   // of x
    int64_t start, step;
    int64_t stride;  // of x
  };

  // x of shape `x` in y of shape `y`, of equal rank, elements of `bytes`; both tensors begin at multiples of
  // `alignment` bytes, of which no more move at once. Steps are not 0. `rounds`: for PlaceRounded; `bytes` are y's.
  // UNIMPLEMENTED, naming `node`, when more than kMaxAxes axes are placed independently of each other.
  static absl::StatusOr<Placement> Make(absl::string_view node, const Shape& x, const Shape& y,
                                        absl::Span<const int64_t> starts, absl::Span<const int64_t> steps,
                                        int64_t bytes, int64_t alignment = 16, bool rounds = false);

  absl::Span<const Axis> axes() const { return axes_; }
  // x's element from which its strides count.
  int64_t offset() const { return offset_; }
  // Of the elements that axes() count, and how many of the tensors' are in one.
  int64_t bytes() const { return bytes_; }
  int64_t together() const { return together_; }
  // Of y.
  int64_t size() const;
  // Neighbours in y that may be written at once, in at most 16 bytes, being neighbours in x as far as they are in it:
  // a power of two.
  int64_t run() const { return run_; }

 private:
  void Collapse();
  void Widen(int64_t alignment, bool rounds);

  absl::InlinedVector<Axis, 6> axes_;
  int64_t offset_ = 0;
  int64_t bytes_ = 1;
  int64_t together_ = 1;
  int64_t run_ = 1;
};

// Enqueues y = x placed among `constant`, whose low bytes are one element's bits.
absl::Status Place(const Context& context, absl::string_view what, const Placement& placement, const void* x,
                   uint64_t constant, void* y);

// As Place, each number rounded to `dtype`, f16 or bf16, on the way, as is `constant`. `placement` was made to round.
absl::Status PlaceRounded(const Context& context, absl::string_view what, const Placement& placement, const float* x,
                          float constant, DType dtype, void* y);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_PLACE_H_
