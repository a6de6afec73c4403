#include "engine/backend/cuda/parameters.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/index_math.h"
#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/place.h"
#include "engine/backend/cuda/vectors.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

constexpr int kThreads = 256;

// 16 bytes of copies at a time from as many accesses of masters as they take; one at a time where either begins at no
// multiple of 16 bytes, as a slot of an arena may.
template <typename T, int kN>
__global__ void PublishCopies(const float* __restrict__ masters, int64_t size, T* __restrict__ copy) {
  const int64_t first = ThreadInGrid<int64_t>();
  for (int64_t i = first; i < size / kN; i += ThreadsInGrid<int64_t>()) {
    float values[kN];
    LoadFloats<kN>(masters + i * kN, values);
    StoreFloats<kN>(values, copy + i * kN);
  }
  const int64_t rest = size / kN * kN + first;
  if (rest < size) copy[rest] = Store<T>(masters[rest]);
}

bool InPacks(const void* a, const void* b) {
  return (reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b)) % 16 == 0;
}

// find->index holds -1, which is the largest when unsigned, so that the lowest index wins in whatever order threads
// come.
template <typename T, int kN>
__global__ void FindFirst(const T* __restrict__ x, int64_t size, NonFiniteFind* __restrict__ find) {
  constexpr auto kNone = ~0ull;
  unsigned long long least = kNone;
  const auto look = [&](T value, int64_t i) {
    if ((FloatBits(Load(value)) & 0x7fffffffu) >= 0x7f800000u) least = min(least, static_cast<unsigned long long>(i));
  };
  const int64_t first = ThreadInGrid<int64_t>();
  for (int64_t i = first; i < size / kN && least == kNone; i += ThreadsInGrid<int64_t>()) {
    const auto in = reinterpret_cast<const Pack<T, kN>*>(x)[i];
#pragma unroll
    for (int j = 0; j < kN; ++j) look(in.values[j], i * kN + j);
  }
  const int64_t rest = size / kN * kN + first;
  if (rest < size) look(x[rest], rest);
  if (least != kNone) atomicMin(reinterpret_cast<unsigned long long*>(&find->index), least);
}

template <typename T>
__global__ void Classify(const T* __restrict__ x, NonFiniteFind* find) {
  find->is_nan = find->index >= 0 && (FloatBits(Load(x[find->index])) & 0x7fffffffu) > 0x7f800000u;
}

__global__ void ClearFind(NonFiniteFind* find) { *find = {}; }

}  // namespace

absl::Status PublishDense(Context* context, const float* masters, int64_t size, DType dtype, void* copy) {
  if (!IsFloat(dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("[cuda] publish: no copy of masters in ", DTypeName(dtype)));
  }
  const unsigned blocks = BlocksFor(CeilDiv(size, 4), kThreads, context->properties().sm_count);
  return VisitFloat(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto kernel = InPacks(masters, copy) ? PublishCopies<T, kPack<T>> : PublishCopies<T, 1>;
    return Launch("publish", kernel, blocks, kThreads, 0, context->stream(), masters, size, static_cast<T*>(copy));
  });
}

absl::Status PadInto(Context* context, const float* from, const Shape& shape, const Shape& padded, float* to) {
  bool fits = shape.size() == padded.size();
  for (size_t d = 0; fits && d < shape.size(); ++d) fits = shape[d] <= padded[d];
  if (!fits) {
    return absl::InvalidArgumentError(
        absl::StrCat("[cuda] a parameter of shape ", ShapeString(shape), " is padded to ", ShapeString(padded)));
  }
  const std::vector<int64_t> starts(shape.size(), 0), steps(shape.size(), 1);
  AMPD_ASSIGN_OR_RETURN(const Placement placement, Placement::Make("pad", shape, padded, starts, steps, sizeof(float),
                                                                   InPacks(from, to) ? 16 : sizeof(float)));
  return Place(*context, "pad", placement, from, 0, to);
}

absl::Status FindNonFinite(Context* context, const void* values, int64_t size, DType dtype, NonFiniteFind* find) {
  constexpr absl::string_view kWhat = "find non-finite";
  const cudaStream_t stream = context->stream();
  AMPD_RETURN_IF_ERROR(Launch(kWhat, ClearFind, 1, 1, 0, stream, find));
  if (!IsFloat(dtype)) return absl::OkStatus();
  return VisitFloat(dtype, [&](auto tag) -> absl::Status {
    using T = typename decltype(tag)::type;
    const auto* x = static_cast<const T*>(values);
    const bool in_packs = InPacks(x, nullptr);
    const unsigned blocks =
        BlocksFor(in_packs ? CeilDiv(size, kPack<T>) : size, kThreads, context->properties().sm_count);
    const auto kernel = in_packs ? FindFirst<T, kPack<T>> : FindFirst<T, 1>;
    AMPD_RETURN_IF_ERROR(Launch(kWhat, kernel, blocks, kThreads, 0, stream, x, size, find));
    return Launch(kWhat, Classify<T>, 1, 1, 0, stream, x, find);
  });
}

}  // namespace ampd::cuda
