#include "engine/backend/cuda/scatter_rows.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/index_math.h"
#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/vectors.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

constexpr int kThreads = 256;
// Sorted positions that one thread adds.
constexpr int kWindow = 32;
// Loads of one thread that are under way at once.
constexpr int kAhead = 4;

__global__ void KeysOfIndices(const int32_t* __restrict__ indices, int64_t count, int64_t rows, bool wraps,
                              uint32_t* __restrict__ keys) {
  for (int64_t i = ThreadInGrid<int64_t>(); i < count; i += ThreadsInGrid<int64_t>()) {
    const int64_t index = indices[i];
    const int64_t row = WrappedIndex(wraps || index >= 0 ? index : rows, rows);
    keys[i] = static_cast<uint32_t>(row < 0 ? rows : row);
  }
}

// Sorted positions, and how their rows lie in memory. A lane is kN neighbours of a row, in one of the outer blocks.
template <int kN>
struct Rows {
  const uint32_t* keys;
  const int32_t* positions;
  int64_t count, rows;
  int64_t packs;  // of kN elements in a row
  int64_t lanes;  // in all outer blocks
  // Of the row that crosses a window's begin, and of the one that begins in it and crosses its end: [windows, 2, lanes]
  // packs.
  float* partials;

  __device__ __forceinline__ int64_t windows() const { return (count + kWindow - 1) / kWindow; }
  __device__ __forceinline__ int64_t End(int64_t window) const { return min((window + 1) * kWindow, count); }
  // Whether the row that holds sorted position k - 1 goes on with k.
  __device__ __forceinline__ bool Crosses(int64_t k) const { return k > 0 && k < count && keys[k - 1] == keys[k]; }
  // Where the pack of a row that `lane` is lies in a tensor of `extent` rows.
  __device__ __forceinline__ int64_t Place(int64_t lane, int64_t extent, int64_t row) const {
    return ((lane / packs * extent + row) * packs + lane % packs) * kN;
  }
  __device__ __forceinline__ float* Partial(int64_t window, int side, int64_t lane) const {
    return partials + ((window * 2 + side) * lanes + lane) * kN;
  }
};

// One thread adds one lane of one window. Rows that lie in it whole are done; of others it leaves partial sums.
template <typename T, typename Y, int kN>
__global__ void SumWindows(const T* __restrict__ x, const Rows<kN> rows, Y* __restrict__ y) {
  const int64_t work = rows.windows() * rows.lanes;
  for (int64_t t = ThreadInGrid<int64_t>(); t < work; t += ThreadsInGrid<int64_t>()) {
    const int64_t window = t / rows.lanes, lane = t % rows.lanes;
    const int64_t begin = window * kWindow, end = rows.End(window);
    float sums[kN] = {};
    uint32_t row = rows.keys[begin];
    bool from_before = rows.Crosses(begin);
    for (int64_t k = begin; k < end; k += kAhead) {
      uint32_t keys[kAhead];
      // As stored, which takes fewer registers than f32.
      Pack<T, kN> values[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        if (k + u >= end) break;
        keys[u] = rows.keys[k + u];
        if (keys[u] < rows.rows) {
          const int64_t from = rows.Place(lane, rows.count, rows.positions[k + u]);
          values[u] = *reinterpret_cast<const Pack<T, kN>*>(x + from);
        }
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        if (k + u >= end) break;
        if (keys[u] != row) {
          if (from_before) {
            StoreFloats<kN>(sums, rows.Partial(window, 0, lane));
          } else {
            StoreFloats<kN>(sums, y + rows.Place(lane, rows.rows, row));
          }
          for (int j = 0; j < kN; ++j) sums[j] = 0;
          row = keys[u];
          from_before = false;
        }
        // Keys of what is left out are the last.
        if (row >= rows.rows) break;
        for (int j = 0; j < kN; ++j) sums[j] += Load(values[u].values[j]);
      }
    }
    if (row >= rows.rows) continue;
    if (from_before || rows.Crosses(end)) {
      StoreFloats<kN>(sums, rows.Partial(window, from_before ? 0 : 1, lane));
    } else {
      StoreFloats<kN>(sums, y + rows.Place(lane, rows.rows, row));
    }
  }
}

// The last window whose first position belongs to `row`, at `first` or later, where it does.
template <int kN>
__device__ int64_t LastWindowOf(const Rows<kN>& rows, uint32_t row, int64_t first) {
  int64_t low = first, high = rows.windows();
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (rows.keys[middle * kWindow] == row ? low : high) = middle;
  }
  return low;
}

// One thread adds the partial sums of the row that begins in its window and crosses its end, for one lane.
template <typename Y, int kN>
__global__ void JoinWindows(const Rows<kN> rows, Y* __restrict__ y) {
  const int64_t work = rows.windows() * rows.lanes;
  for (int64_t t = ThreadInGrid<int64_t>(); t < work; t += ThreadsInGrid<int64_t>()) {
    const int64_t window = t / rows.lanes, lane = t % rows.lanes;
    const int64_t begin = window * kWindow, end = rows.End(window);
    if (!rows.Crosses(end)) continue;
    const uint32_t row = rows.keys[end];
    if (row >= rows.rows || (rows.keys[begin] == row && rows.Crosses(begin))) continue;
    const int64_t last = LastWindowOf(rows, row, window + 1);
    float sums[kN], values[kN];
    LoadFloats<kN>(rows.Partial(window, 1, lane), sums);
#pragma unroll 4
    for (int64_t w = window + 1; w <= last; ++w) {
      LoadFloats<kN>(rows.Partial(w, 0, lane), values);
      for (int j = 0; j < kN; ++j) sums[j] += values[j];
    }
    StoreFloats<kN>(sums, y + rows.Place(lane, rows.rows, row));
  }
}

}  // namespace

absl::StatusOr<RowScatter> RowScatter::Make(absl::string_view node, int64_t outer, int64_t count, int64_t rows,
                                            int64_t inner, WorkspaceLayout* workspace) {
  if (count > std::numeric_limits<int32_t>::max() || rows >= std::numeric_limits<uint32_t>::max()) {
    return absl::UnimplementedError(absl::StrCat("[cuda] ", node, ": gradients of ", count, " indices into ", rows,
                                                 " rows; at most 2147483647 into 4294967294 can be summed"));
  }
  return RowScatter(outer, count, rows, inner, workspace);
}

RowScatter::RowScatter(int64_t outer, int64_t count, int64_t rows, int64_t inner, WorkspaceLayout* workspace)
    : outer_(outer),
      count_(count),
      rows_(rows),
      inner_(inner),
      sort_(count, static_cast<uint32_t>(rows), workspace),
      partials_at_(workspace->Add(CeilDiv(count, kWindow) * 2 * outer * inner * static_cast<int64_t>(sizeof(float)))) {}

absl::Status RowScatter::MakeKeys(const Context& context, absl::string_view what, const runtime::KernelArgs& args,
                                  const int32_t* indices, bool wraps) const {
  const unsigned blocks = BlocksFor(count_, kThreads, context.properties().sm_count);
  return Launch(what, KeysOfIndices, blocks, kThreads, 0, context.stream(), indices, count_, rows_, wraps, keys(args));
}

template <typename T, typename Y, int kN>
absl::Status RowScatter::Sum(const Context& context, absl::string_view what, const runtime::KernelArgs& args,
                             const TensorView& x, const TensorView& y) const {
  const Rows<kN> rows = {.keys = sort_.sorted_keys(args),
                         .positions = sort_.positions(args),
                         .count = count_,
                         .rows = rows_,
                         .packs = inner_ / kN,
                         .lanes = outer_ * (inner_ / kN),
                         .partials = WorkspaceAt<float>(args, partials_at_)};
  const unsigned blocks = BlocksFor(CeilDiv(count_, kWindow) * rows.lanes, kThreads, context.properties().sm_count);
  AMPD_RETURN_IF_ERROR(
      Launch(what, SumWindows<T, Y, kN>, blocks, kThreads, 0, context.stream(), x.as<T>(), rows, y.as<Y>()));
  if (count_ <= kWindow) return absl::OkStatus();
  return Launch(what, JoinWindows<Y, kN>, blocks, kThreads, 0, context.stream(), rows, y.as<Y>());
}

absl::Status RowScatter::Run(const Context& context, absl::string_view what, const runtime::KernelArgs& args,
                             const TensorView& x, const TensorView& y) const {
  // Rows that no position names.
  AMPD_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(y.data, 0, static_cast<size_t>(y.bytes()), context.stream()), what);
  AMPD_RETURN_IF_ERROR(sort_.Run(context, what, args));
  return VisitData(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool in_packs = inner_ % kPack<T> == 0;
    if (y.dtype == DType::kF32) {
      return in_packs ? Sum<T, float, kPack<T>>(context, what, args, x, y)
                      : Sum<T, float, 1>(context, what, args, x, y);
    }
    return in_packs ? Sum<T, T, kPack<T>>(context, what, args, x, y) : Sum<T, T, 1>(context, what, args, x, y);
  });
}

}  // namespace ampd::cuda
