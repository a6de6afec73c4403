#include "engine/backend/cuda/parameters.h"

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/launch.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxRank = 8;

template <typename T>
__global__ void PublishAll(const float* __restrict__ masters, int64_t size, T* __restrict__ copy) {
  constexpr int kN = 4;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t i = first; i < size / kN; i += stride) {
    const auto in = reinterpret_cast<const Pack<float, kN>*>(masters)[i];
    Pack<T, kN> out;
    for (int j = 0; j < kN; ++j) out.values[j] = Store<T>(in.values[j]);
    reinterpret_cast<Pack<T, kN>*>(copy)[i] = out;
  }
  const int64_t rest = size / kN * kN + first;
  if (rest < size) copy[rest] = Store<T>(masters[rest]);
}

struct PadShapes {
  int rank;
  int64_t shape[kMaxRank];
  int64_t padded[kMaxRank];
};

// One thread an element of `to`.
__global__ void Pad(const float* __restrict__ from, PadShapes shapes, int64_t size, float* __restrict__ to) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < size; i += stride) {
    int64_t left = i, source = 0, step = 1;
    bool inside = true;
    for (int d = shapes.rank - 1; d >= 0; --d) {
      const int64_t at = left % shapes.padded[d];
      left /= shapes.padded[d];
      inside = inside && at < shapes.shape[d];
      source += at * step;
      step *= shapes.shape[d];
    }
    to[i] = inside ? from[source] : 0.0f;
  }
}

__global__ void ClearFind(NonFiniteFind* find) { *find = {}; }

// The lowest index wins, in whatever order threads come: -1, none, is the largest when unsigned.
template <typename T>
__global__ void Find(const T* __restrict__ values, int64_t size, NonFiniteFind* find) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < size; i += stride) {
    if (isfinite(Load(values[i]))) continue;
    atomicMin(reinterpret_cast<unsigned long long*>(&find->index), static_cast<unsigned long long>(i));
    return;
  }
}

template <typename T>
__global__ void Classify(const T* __restrict__ values, NonFiniteFind* find) {
  find->is_nan = find->index >= 0 && isnan(Load(values[find->index]));
}

}  // namespace

absl::Status PublishDense(Context* context, const float* masters, int64_t size, DType dtype, void* copy) {
  if (!IsFloat(dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("[cuda] publish: no copy of masters in ", DTypeName(dtype)));
  }
  const unsigned blocks = BlocksFor(CeilDiv(size, 4), kThreads, context->properties().sm_count);
  return VisitFloat(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Launch("publish", PublishAll<T>, blocks, kThreads, 0, context->stream(), masters, size,
                  static_cast<T*>(copy));
  });
}

absl::Status PadInto(Context* context, const float* from, const Shape& shape, const Shape& padded, float* to) {
  if (shape.size() > kMaxRank || shape.size() != padded.size()) {
    return absl::InvalidArgumentError(absl::StrCat("[cuda] pad: ", ShapeString(shape), " into ", ShapeString(padded),
                                                   ": at most ", kMaxRank, " dimensions, as many in both"));
  }
  PadShapes shapes = {static_cast<int>(shape.size()), {}, {}};
  for (size_t d = 0; d < shape.size(); ++d) {
    shapes.shape[d] = shape[d];
    shapes.padded[d] = padded[d];
  }
  const int64_t size = NumElements(padded);
  return Launch("pad", Pad, BlocksFor(size, kThreads, context->properties().sm_count), kThreads, 0, context->stream(),
                from, shapes, size, to);
}

absl::Status FindNonFinite(Context* context, const void* values, int64_t size, DType dtype, NonFiniteFind* find) {
  const cudaStream_t stream = context->stream();
  AMPD_RETURN_IF_ERROR(Launch("find non-finite", ClearFind, 1, 1, 0, stream, find));
  return VisitFloat(dtype, [&](auto tag) -> absl::Status {
    using T = typename decltype(tag)::type;
    const auto* data = static_cast<const T*>(values);
    AMPD_RETURN_IF_ERROR(Launch("find non-finite", Find<T>, BlocksFor(size, kThreads, context->properties().sm_count),
                                kThreads, 0, stream, data, size, find));
    return Launch("find non-finite", Classify<T>, 1, 1, 0, stream, data, find);
  });
}

}  // namespace ampd::cuda
