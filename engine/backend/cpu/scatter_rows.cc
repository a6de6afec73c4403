#include "engine/backend/cpu/scatter_rows.h"

#include <algorithm>

#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/parallel.h"

namespace ampd::cpu {
namespace {

AMPD_CPU_CLONES void AddLoop(const float* __restrict x, int64_t n, float* __restrict sums) {
  for (int64_t i = 0; i < n; ++i) sums[i] += x[i];
}

}  // namespace

RowScatter::RowScatter(int64_t outer, int64_t count, int64_t rows, int64_t inner, bool wraps, int threads,
                       WorkspaceLayout* workspace)
    : outer_(outer), count_(count), rows_(rows), inner_(inner), wraps_(wraps) {
  const int64_t work = outer * (count + rows) * inner;
  parts_ = static_cast<int>(std::min<int64_t>(PartsFor(threads, work, kMinElementsPerThread), outer * rows));
  begins_at_ = workspace->Add((rows + 1) * sizeof(int32_t));
  order_at_ = workspace->Add(count * sizeof(int32_t));
}

// Counting sort: keeps the order of equal indices.
void RowScatter::SortByRow(const int32_t* indices, int32_t* begins, int32_t* order) const {
  const auto row_of = [&](int64_t i) {
    const int64_t index = indices[i];
    if (wraps_) return WrappedIndex(index, rows_);
    return index >= 0 && index < rows_ ? index : int64_t{-1};
  };
  std::fill(begins, begins + rows_ + 1, 0);
  for (int64_t i = 0; i < count_; ++i) {
    if (row_of(i) >= 0) ++begins[row_of(i) + 1];
  }
  for (int64_t r = 0; r < rows_; ++r) begins[r + 1] += begins[r];
  for (int64_t i = 0; i < count_; ++i) {
    if (row_of(i) >= 0) order[begins[row_of(i)]++] = static_cast<int32_t>(i);
  }
  // Each begin has moved to its row's end, which is the next row's begin.
  for (int64_t r = rows_; r > 0; --r) begins[r] = begins[r - 1];
  begins[0] = 0;
}

void RowScatter::SumRow(const TensorView& x, const TensorView& y, int64_t outer, int64_t row, const int32_t* begins,
                        const int32_t* order) const {
  alignas(64) float in[kBlock], sums[kBlock];
  const int64_t to = (outer * rows_ + row) * inner_;
  for (int64_t first = 0; first < inner_; first += kBlock) {
    const int64_t m = std::min(kBlock, inner_ - first);
    float* target = Target(y, to + first, sums);
    std::fill(target, target + m, 0.0f);
    for (int32_t k = begins[row]; k < begins[row + 1]; ++k) {
      AddLoop(Load(x, (outer * count_ + order[k]) * inner_ + first, m, in), m, target);
    }
    Store(y, to + first, m, target);
  }
}

void RowScatter::Run(const runtime::KernelArgs& args, const TensorView& x, const int32_t* indices,
                     const TensorView& y) const {
  auto* begins = WorkspaceAt<int32_t>(args, begins_at_);
  auto* order = WorkspaceAt<int32_t>(args, order_at_);
  SortByRow(indices, begins, order);
  ParallelRange(parts_, outer_ * rows_, 1, [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) SumRow(x, y, i / rows_, i % rows_, begins, order);
  });
}

}  // namespace ampd::cpu
