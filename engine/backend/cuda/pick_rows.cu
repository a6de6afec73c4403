#include "engine/backend/cuda/pick_rows.h"

#include "engine/backend/cuda/index_math.h"
#include "engine/backend/cuda/launch.h"

namespace ampd::cuda {
namespace {

constexpr int kThreads = 256;

// `inner` is of T, of which several elements may be one.
template <typename T, typename Index>
__global__ void Pick(const T* __restrict__ x, const int32_t* __restrict__ indices, const IndexDivisor<Index> inner,
                     const IndexDivisor<Index> count, int64_t rows, bool wraps, T missing, Index size,
                     T* __restrict__ y) {
  for (Index i = ThreadInGrid<Index>(); i < size; i += ThreadsInGrid<Index>()) {
    Index column, pick;
    const int64_t outer = Divide(count, Divide(inner, i, &column), &pick);
    const int64_t index = indices[pick];
    const int64_t row = WrappedIndex(wraps || index >= 0 ? index : rows, rows);
    y[i] = row < 0 ? missing : x[(outer * rows + row) * inner.divisor + column];
  }
}

}  // namespace

uint64_t MissingBits(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0x7fc00000;
    case DType::kF16:
      return 0x7e00;
    case DType::kBF16:
      return 0x7fc0;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return 0x7f;
    default:
      return 0;
  }
}

absl::Status PickRows(const Context& context, absl::string_view what, const RowPick& pick, DType dtype, const void* x,
                      const int32_t* indices, void* y) {
  const int64_t bytes = SizeOf(dtype), together = ElementsTogether(bytes, {pick.inner});
  const int64_t size = pick.outer * pick.count * (pick.inner / together);
  const unsigned blocks = BlocksFor(size, kThreads, context.properties().sm_count);
  return VisitIndex(size, [&](auto index) {
    using Index = decltype(index);
    return VisitMove(bytes * together, [&](auto element) {
      using T = decltype(element);
      return Launch(what, Pick<T, Index>, blocks, kThreads, 0, context.stream(), static_cast<const T*>(x), indices,
                    IndexDivisor<Index>(pick.inner / together), IndexDivisor<Index>(pick.count), pick.rows, pick.wraps,
                    Repeated<T>(MissingBits(dtype), bytes), static_cast<Index>(size), static_cast<T*>(y));
    });
  });
}

}  // namespace ampd::cuda
