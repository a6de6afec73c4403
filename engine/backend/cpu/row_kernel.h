// Kernels that treat the rows of [..., C] one by one.
#ifndef AMPD_ENGINE_BACKEND_CPU_ROW_KERNEL_H_
#define AMPD_ENGINE_BACKEND_CPU_ROW_KERNEL_H_

#include <algorithm>
#include <memory>

#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/parallel.h"

namespace ampd::cpu {

// Rows at which another thread pays, `cost` being elements a row times cheap operations an element.
inline int RowParts(int threads, int64_t rows, int64_t cost) {
  return static_cast<int>(std::min<int64_t>(PartsFor(threads, rows * cost, kMinElementsPerThread), rows));
}

// row(args, r) for every row of a tensor of `shape`, whose last axis is the row; `cost` cheap operations an element.
template <typename Row>
std::unique_ptr<runtime::Kernel> MakeRowKernel(const runtime::NodeDesc& desc, const Shape& shape, int64_t cost,
                                               const Row& row) {
  const int64_t rows = NumElements(shape) / shape.back();
  const int parts = RowParts(desc.threads, rows, shape.back() * cost);
  return MakeKernel(0, [=](const runtime::KernelArgs& args) {
    ParallelRange(parts, rows, 1, [&](int, int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) row(args, r);
    });
  });
}

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_ROW_KERNEL_H_
