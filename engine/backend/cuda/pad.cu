#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/index_math.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/place.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

using ir::OpKind;
using runtime::KernelArgs;
using runtime::NodeDesc;
using Ints = std::vector<int64_t>;
using StatusOrKernel = absl::StatusOr<std::unique_ptr<runtime::Kernel>>;

constexpr int kThreads = 256;

// A pad that reads the tensor everywhere: mirrored at its edges (reflect), or its edge repeated.
struct Border {
  struct Axis {
    int64_t extent, before, padded;
    int64_t stride;  // of the tensor
  };
  std::vector<Axis> axes;
  bool reflect = false;
  int64_t together = 1;  // elements that count as one

  int64_t padded_size() const {
    int64_t n = 1;
    for (const Axis& axis : axes) n *= axis.padded;
    return n;
  }
};

// Neighbouring axes without pads are one; those that are dense move by up to 16 bytes.
Border MakeBorder(const NodeDesc& desc, const Shape& x, const Shape& y, int64_t bytes) {
  const Ints pads = desc.attributes.Ints("pads");
  Border border = {.reflect = desc.attributes.String("mode") == "reflect"};
  const Shape strides = DenseStrides(x);
  bool joins = false;
  for (size_t d = 0; d < x.size(); ++d) {
    const bool whole = x[d] == y[d];
    if (whole && joins) {
      Border::Axis& axis = border.axes.back();
      axis = {axis.extent * x[d], 0, axis.padded * x[d], strides[d]};
    } else {
      border.axes.push_back({x[d], pads[d], y[d], strides[d]});
    }
    joins = whole;
  }
  if (!border.axes.empty() && joins) {
    border.together = ElementsTogether(bytes, {border.axes.back().extent});
    border.axes.back().extent /= border.together;
    border.axes.back().padded /= border.together;
    for (size_t d = 0; d + 1 < border.axes.size(); ++d) border.axes[d].stride /= border.together;
  }
  return border;
}

template <typename Index>
struct DeviceBorder {
  int axes = 0;
  bool reflect = false;
  IndexDivisor<Index> extents[kMaxAxes], padded[kMaxAxes];
  int64_t before[kMaxAxes] = {}, strides[kMaxAxes] = {};

  explicit DeviceBorder(const Border& border) : axes(static_cast<int>(border.axes.size())), reflect(border.reflect) {
    for (int d = 0; d < axes; ++d) {
      extents[d] = IndexDivisor<Index>(border.axes[d].extent);
      padded[d] = IndexDivisor<Index>(border.axes[d].padded);
      before[d] = border.axes[d].before;
      strides[d] = border.axes[d].stride;
    }
  }

  // What element `i` of the padded tensor reads.
  __device__ __forceinline__ int64_t Source(Index i) const {
    int64_t at = 0;
    for (int d = axes - 1; d >= 0; --d) {
      Index along;
      i = Divide(padded[d], i, &along);
      const int64_t last = static_cast<int64_t>(extents[d].divisor) - 1;
      int64_t from = static_cast<int64_t>(along) - before[d];
      if (reflect) {
        from = from < 0 ? -from : from > last ? 2 * last - from : from;
      } else {
        from = from < 0 ? 0 : from > last ? last : from;
      }
      at += from * strides[d];
    }
    return at;
  }

  // How many places along axis `d` of the padded tensor read place `at` of the tensor.
  __device__ __forceinline__ int64_t Readers(int d, int64_t at) const {
    const int64_t last = static_cast<int64_t>(extents[d].divisor) - 1;
    const int64_t after = static_cast<int64_t>(padded[d].divisor) - 1 - last - before[d];
    if (!reflect) return 1 + (at == 0 ? before[d] : 0) + (at == last ? after : 0);
    return 1 + (at > 0 && at <= before[d]) + (at < last && at >= last - after);
  }
  // The `k`-th of them.
  __device__ __forceinline__ int64_t Reader(int d, int64_t at, int64_t k) const {
    const int64_t own = before[d] + at;
    if (!reflect) return (at == 0 ? 0 : own) + k;
    const bool mirrored_before = at > 0 && at <= before[d];
    if (mirrored_before && k == 0) return before[d] - at;
    const int64_t last = static_cast<int64_t>(extents[d].divisor) - 1;
    return k == (mirrored_before ? 1 : 0) ? own : before[d] + 2 * last - at;
  }
};

template <typename T, typename Index>
__global__ void PadBorder(const T* __restrict__ x, const DeviceBorder<Index> border, Index size, T* __restrict__ y) {
  for (Index i = ThreadInGrid<Index>(); i < size; i += ThreadsInGrid<Index>()) y[i] = x[border.Source(i)];
}

// Each element of dx adds what it was read for, in the order of dy.
template <typename T, typename Index>
__global__ void PadBorderGrad(const T* __restrict__ dy, const DeviceBorder<Index> border, Index size,
                              T* __restrict__ dx) {
  for (Index i = ThreadInGrid<Index>(); i < size; i += ThreadsInGrid<Index>()) {
    int64_t readers = 1;
    Index left = i, along;
    for (int d = border.axes - 1; d >= 0; --d) {
      left = Divide(border.extents[d], left, &along);
      readers *= border.Readers(d, along);
    }
    double sum = 0;
    for (int64_t reader = 0; reader < readers; ++reader) {
      int64_t k = reader, at = 0, stride = 1;
      left = i;
      for (int d = border.axes - 1; d >= 0; --d) {
        left = Divide(border.extents[d], left, &along);
        const int64_t here = border.Readers(d, along);
        at += border.Reader(d, along, k % here) * stride;
        k /= here;
        stride *= border.padded[d].divisor;
      }
      sum += static_cast<double>(Load(dy[at]));
    }
    dx[i] = Store<T>(static_cast<float>(sum));
  }
}

// The constant as bits of `dtype`: floats rounded, integers cut toward zero within their range.
uint64_t ConstantBits(DType dtype, double value) {
  const auto narrow = static_cast<float>(value);
  if (dtype == DType::kF32) return FloatBits(narrow);
  if (dtype == DType::kF16) return ToHalf(narrow).bits;
  if (dtype == DType::kBF16) return ToBFloat16(narrow).bits;
  if (dtype == DType::kF8E4M3) return ToFloat8E4M3(narrow).bits;
  if (dtype == DType::kF8E5M2) return ToFloat8E5M2(narrow).bits;
  if (dtype == DType::kBool) return value != 0 ? 1 : 0;
  const double low = dtype == DType::kU8 ? 0 : dtype == DType::kI32 ? -0x1p31 : -0x1p63;
  const double high = dtype == DType::kU8 ? 255 : dtype == DType::kI32 ? 0x1p31 - 1 : 0x1.fffffffffffffp62;
  return std::isnan(value) ? 0 : static_cast<uint64_t>(static_cast<int64_t>(std::clamp(value, low, high)));
}

StatusOrKernel PrepareConstantPad(Context* context, const NodeDesc& desc) {
  const Shape &x = desc.inputs[0].shape, &y = desc.outputs[0].shape;
  const Ints pads = desc.attributes.Ints("pads"), steps(x.size(), 1);
  const DType dtype = desc.outputs[0].dtype;
  const bool rounds = desc.inputs[0].dtype != dtype;
  AMPD_ASSIGN_OR_RETURN(const Placement placement,
                        Placement::Make(desc.name, x, y, absl::MakeSpan(pads).subspan(0, x.size()), steps,
                                        SizeOf(dtype), /*alignment=*/16, rounds));
  if (rounds) {
    const auto value = static_cast<float>(desc.attributes.Double("value"));
    return MakeKernel(0, [=, name = desc.name](const KernelArgs& args) {
      return PlaceRounded(*context, name, placement, args.inputs[0].as<float>(), value, dtype, args.outputs[0].data);
    });
  }
  const uint64_t constant = ConstantBits(dtype, desc.attributes.Double("value"));
  return MakeKernel(0, [=, name = desc.name](const KernelArgs& args) {
    return Place(*context, name, placement, args.inputs[0].data, constant, args.outputs[0].data);
  });
}

StatusOrKernel PreparePad(Context* context, const NodeDesc& desc) {
  const std::string mode = desc.attributes.String("mode");
  if (mode != "reflect" && mode != "edge") return PrepareConstantPad(context, desc);
  const int64_t bytes = SizeOf(desc.outputs[0].dtype);
  const Border border = MakeBorder(desc, desc.inputs[0].shape, desc.outputs[0].shape, bytes);
  AMPD_RETURN_IF_ERROR(CheckAxes(desc.name, border.axes.size()));
  const int64_t size = border.padded_size();
  const unsigned blocks = BlocksFor(size, kThreads, context->properties().sm_count);
  return MakeKernel(0, [=, name = desc.name](const KernelArgs& args) {
    return VisitIndex(size, [&](auto index) {
      using Index = decltype(index);
      return VisitMove(bytes * border.together, [&](auto element) {
        using T = decltype(element);
        return Launch(name, PadBorder<T, Index>, blocks, kThreads, 0, context->stream(), args.inputs[0].as<T>(),
                      DeviceBorder<Index>(border), static_cast<Index>(size), args.outputs[0].as<T>());
      });
    });
  });
}

StatusOrKernel PreparePadGrad(Context* context, const NodeDesc& desc) {
  const Shape &x = desc.outputs[0].shape, &y = desc.inputs[0].shape;
  // Elements are added one by one, so none count as one.
  const Border border = MakeBorder(desc, x, y, 16);
  AMPD_RETURN_IF_ERROR(CheckAxes(desc.name, border.axes.size()));
  const int64_t size = NumElements(x);
  const unsigned blocks = BlocksFor(size, kThreads, context->properties().sm_count);
  return MakeKernel(0, [=, name = desc.name](const KernelArgs& args) {
    return VisitIndex(std::max(size, border.padded_size()), [&](auto index) {
      using Index = decltype(index);
      return VisitData(args.outputs[0].dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        return Launch(name, PadBorderGrad<T, Index>, blocks, kThreads, 0, context->stream(), args.inputs[0].as<T>(),
                      DeviceBorder<Index>(border), static_cast<Index>(size), args.outputs[0].as<T>());
      });
    });
  });
}

}  // namespace

void RegisterPad(runtime::KernelTable* table, Context* context) {
  for (DType t : kAllDTypes) {
    table->Add(OpKind::kPad, {t}, {t}, [=](const NodeDesc& desc) { return PreparePad(context, desc); });
  }
  for (DType t : {DType::kF16, DType::kBF16}) {
    table->Add(OpKind::kPad, {DType::kF32}, {t}, [=](const NodeDesc& desc) { return PreparePad(context, desc); });
  }
  for (DType t : kDataTypes) {
    table->Add(OpKind::kPadGrad, {t}, {t}, [=](const NodeDesc& desc) { return PreparePadGrad(context, desc); });
  }
}

}  // namespace ampd::cuda
