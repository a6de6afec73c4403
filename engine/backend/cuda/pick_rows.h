// Rows of a tensor chosen by index: embedding, gather.
#ifndef AMPD_ENGINE_BACKEND_CUDA_PICK_ROWS_H_
#define AMPD_ENGINE_BACKEND_CUDA_PICK_ROWS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/backend/cuda/context.h"
#include "engine/core/dtype.h"

namespace ampd::cuda {

// What is read where an index is outside, as an element's bits: NaN, which a training step reports, or 0 where a dtype
// has no NaN.
uint64_t MissingBits(DType dtype);

// y[o, i, :] = x[o, r, :] with r the i-th index, for x [outer, rows, inner] and y [outer, count, inner].
struct RowPick {
  int64_t outer = 1, count = 1, rows = 1, inner = 1;
  bool wraps = false;  // a negative index counts from the end
};

// Enqueues it. x and y begin at multiples of 16 bytes.
absl::Status PickRows(const Context& context, absl::string_view what, const RowPick& pick, DType dtype, const void* x,
                      const int32_t* indices, void* y);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_PICK_ROWS_H_
