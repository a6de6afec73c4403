// Sums of rows by index, as gradients of gathers need them: every output row adds its contributions in their order, so
// bits do not depend on the number of threads. Internal to the CPU backend.
#ifndef AMPD_ENGINE_BACKEND_CPU_SCATTER_ROWS_H_
#define AMPD_ENGINE_BACKEND_CPU_SCATTER_ROWS_H_

#include <cstdint>

#include "engine/backend/cpu/kernels.h"

namespace ampd::cpu {

// y[o, r, :] = sum of x[o, i, :] over the i whose index is r, in fp32, for `outer` blocks o that share the indices.
class RowScatter {
 public:
  // x is [outer, count, inner], y [outer, rows, inner]; negative indices count from the end where `wraps`, and what is
  // outside is left out. Takes its share of `workspace`.
  RowScatter(int64_t outer, int64_t count, int64_t rows, int64_t inner, bool wraps, int threads,
             WorkspaceLayout* workspace);

  void Run(const runtime::KernelArgs& args, const TensorView& x, const int32_t* indices, const TensorView& y) const;

 private:
  void SortByRow(const int32_t* indices, int32_t* begins, int32_t* order) const;
  void SumRow(const TensorView& x, const TensorView& y, int64_t outer, int64_t row, const int32_t* begins,
              const int32_t* order) const;

  int64_t outer_, count_, rows_, inner_;
  bool wraps_;
  int parts_;
  int64_t begins_at_, order_at_;
};

// `index`, which may count from the end, as one in [0, extent); -1 where it is outside.
inline int64_t WrappedIndex(int64_t index, int64_t extent) {
  if (index < 0) index += extent;
  return index >= 0 && index < extent ? index : -1;
}

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_SCATTER_ROWS_H_
