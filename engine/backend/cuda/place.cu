#include "engine/backend/cuda/place.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/index_math.h"
#include "engine/backend/cuda/launch.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

constexpr int kThreads = 256;

template <typename Index>
struct DevicePlacement {
  int axes = 0;
  IndexDivisor<Index> extents[kMaxAxes];
  IndexDivisor<Index> steps[kMaxAxes];
  int64_t starts[kMaxAxes] = {};
  int64_t counts[kMaxAxes] = {};
  int64_t strides[kMaxAxes] = {};
  int64_t offset = 0;

  explicit DevicePlacement(const Placement& p) : axes(static_cast<int>(p.axes().size())), offset(p.offset()) {
    for (int d = 0; d < axes; ++d) {
      const Placement::Axis& axis = p.axes()[d];
      extents[d] = IndexDivisor<Index>(axis.extent);
      steps[d] = IndexDivisor<Index>(axis.step);
      starts[d] = axis.start;
      counts[d] = axis.count;
      strides[d] = axis.stride;
    }
  }

  // The element of x that lies at element `i` of y, or -1.
  __device__ __forceinline__ int64_t Source(Index i) const { return Source(i, axes); }
  // As if there were only the `outer` first axes.
  __device__ __forceinline__ int64_t Source(Index i, int outer) const {
    int64_t at = offset;
    for (int d = outer - 1; d >= 0; --d) {
      Index along, beside;
      i = Divide(extents[d], i, &along);
      const int64_t from_start = static_cast<int64_t>(along) - starts[d];
      if (from_start < 0) return -1;
      const int64_t p = Divide(steps[d], static_cast<Index>(from_start), &beside);
      if (beside != 0 || p >= counts[d]) return -1;
      at += p * strides[d];
    }
    return at;
  }
};

// What `x` is in y: the same, or rounded.
template <typename To, typename From>
__device__ __forceinline__ To Placed(const From& x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else {
    return Store<To>(x);
  }
}

template <typename From, typename To, typename Index>
__global__ void PlaceElements(const From* __restrict__ x, const DevicePlacement<Index> placement, To constant,
                              Index size, To* __restrict__ y) {
  for (Index i = ThreadInGrid<Index>(); i < size; i += ThreadsInGrid<Index>()) {
    const int64_t from = placement.Source(i);
    y[i] = from < 0 ? constant : Placed<To>(x[from]);
  }
}

// As PlaceElements, by runs of kRun elements of y that lie side by side on its last axis, in x, too.
template <typename From, typename To, int kRun, typename Index>
__global__ void PlaceRuns(const From* __restrict__ x, const DevicePlacement<Index> placement,
                          const IndexDivisor<Index> runs, To constant, Index size, To* __restrict__ y) {
  using Unsigned = std::make_unsigned_t<Index>;
  const int last = placement.axes - 1;
  // y is no longer than Index holds, but x may be, where it is cut.
  const int64_t most = std::numeric_limits<std::make_signed_t<Index>>::max();
  const auto counted = static_cast<Unsigned>(placement.counts[last] < most ? placement.counts[last] : most);
  const auto start = static_cast<Unsigned>(placement.starts[last]);
  for (Index i = ThreadInGrid<Index>(); i < size; i += ThreadsInGrid<Index>()) {
    Index run;
    const int64_t row = placement.Source(Divide(runs, i, &run), last);
    const Unsigned count = row < 0 ? 0 : counted;
    // What lies before x is past its end once the difference wraps.
    const Unsigned first = static_cast<Unsigned>(run) * kRun - start;
    const int64_t from = row + static_cast<std::make_signed_t<Index>>(first);
    Pack<To, kRun> out;
#pragma unroll
    for (int j = 0; j < kRun; ++j) out.values[j] = first + j < count ? Placed<To>(x[from + j]) : constant;
    reinterpret_cast<Pack<To, kRun>*>(y)[i] = out;
  }
}

template <typename From, typename To>
absl::Status LaunchPlace(const Context& context, absl::string_view what, const Placement& placement, const void* x,
                         To constant, void* y) {
  const int64_t size = placement.size();
  const int sms = context.properties().sm_count;
  // Distances from where x starts reach x's size, too, where it is cut.
  int64_t largest = size;
  for (const Placement::Axis& axis : placement.axes()) largest = std::max(largest, axis.extent - axis.start);
  return VisitIndex(largest, [&](auto index) {
    using Index = decltype(index);
    constexpr int kRun = kPack<To>;
    const DevicePlacement<Index> device(placement);
    if constexpr (kRun > 1) {
      if (placement.run() == kRun) {
        return Launch(what, PlaceRuns<From, To, kRun, Index>, BlocksFor(size / kRun, kThreads, sms), kThreads, 0,
                      context.stream(), static_cast<const From*>(x), device,
                      IndexDivisor<Index>(placement.axes().back().extent / kRun), constant,
                      static_cast<Index>(size / kRun), static_cast<To*>(y));
      }
    }
    return Launch(what, PlaceElements<From, To, Index>, BlocksFor(size, kThreads, sms), kThreads, 0, context.stream(),
                  static_cast<const From*>(x), device, constant, static_cast<Index>(size), static_cast<To*>(y));
  });
}

}  // namespace

absl::StatusOr<Placement> Placement::Make(absl::string_view node, const Shape& x, const Shape& y,
                                          absl::Span<const int64_t> starts, absl::Span<const int64_t> steps,
                                          int64_t bytes, int64_t alignment, bool rounds) {
  Placement p;
  p.bytes_ = bytes;
  int64_t stride = 1;
  p.axes_.resize(x.size());
  for (size_t d = x.size(); d-- > 0; stride *= x[d]) {
    Axis& axis = p.axes_[d];
    axis = {.extent = y[d], .count = x[d], .start = starts[d], .step = steps[d], .stride = stride};
    // A step that is never taken may be of any size.
    if (axis.count == 1) axis.step = 1;
    if (axis.step > 0) continue;
    // Backwards is forwards from the other end.
    p.offset_ += (axis.count - 1) * stride;
    axis.start += (axis.count - 1) * axis.step;
    axis.step = -axis.step;
    axis.stride = -stride;
  }
  p.Collapse();
  p.Widen(alignment, rounds);
  AMPD_RETURN_IF_ERROR(CheckAxes(node, p.axes_.size()));
  return p;
}

int64_t Placement::size() const {
  int64_t n = 1;
  for (const Axis& axis : axes_) n *= axis.extent;
  return n;
}

// An axis that x fills is part of the one before it.
void Placement::Collapse() {
  absl::InlinedVector<Axis, 6> kept;
  for (const Axis& axis : axes_) {
    const bool filled = axis.start == 0 && axis.step == 1 && axis.count == axis.extent;
    if (filled && axis.extent == 1) continue;
    if (filled && !kept.empty() && kept.back().step == 1 && kept.back().stride == axis.stride * axis.count) {
      Axis& before = kept.back();
      before.extent *= axis.extent;
      before.count *= axis.count;
      before.start *= axis.extent;
      before.stride = axis.stride;
    } else {
      kept.push_back(axis);
    }
  }
  axes_ = std::move(kept);
}

void Placement::Widen(int64_t alignment, bool rounds) {
  if (axes_.empty() || axes_.back().step != 1 || axes_.back().stride != 1) return;
  if (!rounds) {
    Shape multiples = {axes_.back().extent, axes_.back().count, axes_.back().start, offset_, alignment / bytes_};
    for (size_t d = 0; d + 1 < axes_.size(); ++d) multiples.push_back(axes_[d].stride);
    together_ = ElementsTogether(bytes_, multiples);
  }
  bytes_ *= together_;
  offset_ /= together_;
  for (size_t d = 0; d + 1 < axes_.size(); ++d) axes_[d].stride /= together_;
  axes_.back().extent /= together_;
  axes_.back().count /= together_;
  axes_.back().start /= together_;
  run_ = ElementsTogether(bytes_, {axes_.back().extent, alignment / bytes_});
}

absl::Status Place(const Context& context, absl::string_view what, const Placement& placement, const void* x,
                   uint64_t constant, void* y) {
  return VisitMove(placement.bytes(), [&](auto element) {
    using T = decltype(element);
    const T fill = Repeated<T>(constant, placement.bytes() / placement.together());
    return LaunchPlace<T, T>(context, what, placement, x, fill, y);
  });
}

absl::Status PlaceRounded(const Context& context, absl::string_view what, const Placement& placement, const float* x,
                          float constant, DType dtype, void* y) {
  if (dtype == DType::kF16) return LaunchPlace<float>(context, what, placement, x, ToHalf(constant), y);
  return LaunchPlace<float>(context, what, placement, x, ToBFloat16(constant), y);
}

}  // namespace ampd::cuda
