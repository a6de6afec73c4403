// Sums of rows by index, as gradients of gathers need them, without atomics on floats: equal inputs give equal bits.
#ifndef AMPD_ENGINE_BACKEND_CUDA_SCATTER_ROWS_H_
#define AMPD_ENGINE_BACKEND_CUDA_SCATTER_ROWS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/sort_keys.h"

namespace ampd::cuda {

// y[o, r, :] = sum of x[o, i, :] over the i whose key is r, in fp32 and in the order of i, for `outer` blocks o that
// share the keys. Sorts positions by key, then adds them by windows of 32 neighbours in that order, so that a row that
// all positions name is no slower than others: what windows hold of a row that crosses them is added last.
// Immutable; cheap to copy.
class RowScatter {
 public:
  // x is [outer, count, inner], y [outer, rows, inner]. Takes its share of `workspace`. UNIMPLEMENTED, naming `node`,
  // beyond 2^31 - 1 positions or 2^32 - 2 rows.
  static absl::StatusOr<RowScatter> Make(absl::string_view node, int64_t outer, int64_t count, int64_t rows,
                                         int64_t inner, WorkspaceLayout* workspace);

  // Where a kernel puts the key of each position, before Run(); `rows` for one that is left out.
  uint32_t* keys(const runtime::KernelArgs& args) const { return sort_.keys(args); }
  // Enqueues making them of indices, of which negative ones count from the end where `wraps`; what is outside is left
  // out.
  absl::Status MakeKeys(const Context& context, absl::string_view what, const runtime::KernelArgs& args,
                        const int32_t* indices, bool wraps) const;
  // Enqueues the sums. x is f32, f16 or bf16; y is of the same dtype or f32.
  absl::Status Run(const Context& context, absl::string_view what, const runtime::KernelArgs& args, const TensorView& x,
                   const TensorView& y) const;

 private:
  RowScatter(int64_t outer, int64_t count, int64_t rows, int64_t inner, WorkspaceLayout* workspace);

  template <typename T, typename Y, int kN>
  absl::Status Sum(const Context& context, absl::string_view what, const runtime::KernelArgs& args, const TensorView& x,
                   const TensorView& y) const;

  int64_t outer_, count_, rows_, inner_;
  KeySort sort_;
  int64_t partials_at_;
};

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_SCATTER_ROWS_H_
