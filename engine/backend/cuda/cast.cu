#include <limits>

#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/launch.h"

namespace ampd::cuda {
namespace {

constexpr int kThreads = 256;
constexpr DType kFloatTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2};
constexpr DType kOtherTypes[] = {DType::kI32, DType::kI64, DType::kU8, DType::kBool};

// Rounds into `To`; saturated, what is past the largest 8-bit value becomes it.
template <typename To, bool kSaturate>
__device__ __forceinline__ To Convert(float x) {
  if constexpr (kSaturate && std::is_same_v<To, Float8E4M3>) return ToFloat8E4M3Saturating(x);
  if constexpr (kSaturate && std::is_same_v<To, Float8E5M2>) return ToFloat8E5M2Saturating(x);
  return Store<To>(x);
}

template <typename From, typename To, bool kSaturate>
__global__ void CastFloats(const From* __restrict__ x, int64_t size, To* __restrict__ y) {
  constexpr int kN = 4;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t i = first; i < size / kN; i += stride) {
    const auto in = reinterpret_cast<const Pack<From, kN>*>(x)[i];
    Pack<To, kN> out;
    for (int j = 0; j < kN; ++j) out.values[j] = Convert<To, kSaturate>(Load(in.values[j]));
    reinterpret_cast<Pack<To, kN>*>(y)[i] = out;
  }
  const int64_t rest = size / kN * kN + first;
  if (rest < size) y[rest] = Convert<To, kSaturate>(Load(x[rest]));
}

// Toward zero; what is out of range becomes the nearest limit, NaN 0.
template <typename To>
__device__ To FromFloat(float x, bool to_bool) {
  if (to_bool) return x != 0 ? 1 : 0;
  const double low = static_cast<double>(std::numeric_limits<To>::min());
  // 2^31, 2^63 or 2^8: exact, and one past the largest.
  const double past = 2.0 * static_cast<double>(std::numeric_limits<To>::max() / 2 + 1);
  const double wide = static_cast<double>(x);
  if (x != x) return 0;
  if (wide >= past) return std::numeric_limits<To>::max();
  return wide < low ? std::numeric_limits<To>::min() : static_cast<To>(wide);
}

// An f32 that rounds to f16 and bf16 as `x` itself does: its last bit is set when anything was cut off.
__device__ inline float StickyFloat(int64_t x) {
  uint64_t magnitude = x < 0 ? -static_cast<uint64_t>(x) : static_cast<uint64_t>(x);
  int shift = 0;
  while (magnitude >> shift >= uint64_t{1} << 24) ++shift;
  if (shift > 0) {
    const uint64_t cut = magnitude & ((uint64_t{1} << shift) - 1);
    magnitude = (magnitude >> shift | (cut != 0 ? 1 : 0)) << shift;
  }
  const float value = static_cast<float>(magnitude);
  return x < 0 ? -value : value;
}

template <typename From, typename To>
__device__ To ConvertOther(From x, bool to_bool) {
  if constexpr (std::is_integral_v<From> && std::is_integral_v<To>) {
    return to_bool ? static_cast<To>(x != 0) : static_cast<To>(x);
  } else if constexpr (std::is_integral_v<From>) {
    return Store<To>(std::is_same_v<To, float> ? static_cast<float>(x) : StickyFloat(static_cast<int64_t>(x)));
  } else {
    return FromFloat<To>(Load(x), to_bool);
  }
}

template <typename From, typename To>
__global__ void CastOthers(const From* __restrict__ x, int64_t size, bool to_bool, To* __restrict__ y) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < size; i += stride) {
    y[i] = ConvertOther<From, To>(x[i], to_bool);
  }
}

template <typename From, typename To>
absl::Status LaunchFloats(const Context& context, const std::string& name, bool saturate, const TensorView& x,
                          const TensorView& y) {
  const unsigned blocks = BlocksFor(CeilDiv(x.size(), 4), kThreads, context.properties().sm_count);
  return Launch(name, saturate ? CastFloats<From, To, true> : CastFloats<From, To, false>, blocks, kThreads, 0,
                context.stream(), x.as<From>(), x.size(), y.as<To>());
}

runtime::PrepareKernel FloatCast(Context* context) {
  return [context](const runtime::NodeDesc& desc) {
    const bool saturate = desc.attributes.Bool("saturate") && IsF8(desc.outputs[0].dtype);
    return MakeKernel(0, [=, name = desc.name](const runtime::KernelArgs& args) {
      const TensorView &x = args.inputs[0], &y = args.outputs[0];
      return VisitFloat(x.dtype, [&](auto from) {
        return VisitFloat(y.dtype, [&](auto to) {
          return LaunchFloats<typename decltype(from)::type, typename decltype(to)::type>(*context, name, saturate, x,
                                                                                          y);
        });
      });
    });
  };
}

template <typename From, typename To>
absl::Status LaunchOthers(const Context& context, const std::string& name, const TensorView& x, const TensorView& y) {
  const unsigned blocks = BlocksFor(x.size(), kThreads, context.properties().sm_count);
  return Launch(name, CastOthers<From, To>, blocks, kThreads, 0, context.stream(), x.as<From>(), x.size(),
                y.dtype == DType::kBool, y.as<To>());
}

// With an integer or a bool on one side at least.
runtime::PrepareKernel OtherCast(Context* context) {
  return [context](const runtime::NodeDesc& desc) {
    return MakeKernel(0, [=, name = desc.name](const runtime::KernelArgs& args) {
      const TensorView &x = args.inputs[0], &y = args.outputs[0];
      const auto launch = [&](auto from, auto to) {
        return LaunchOthers<typename decltype(from)::type, typename decltype(to)::type>(*context, name, x, y);
      };
      const auto to_integer = [&](auto from) {
        return VisitInteger(y.dtype, [&](auto to) { return launch(from, to); });
      };
      if (IsFloat(x.dtype)) return VisitData(x.dtype, to_integer);
      if (!IsFloat(y.dtype)) return VisitInteger(x.dtype, to_integer);
      return VisitInteger(x.dtype,
                          [&](auto from) { return VisitData(y.dtype, [&](auto to) { return launch(from, to); }); });
    });
  };
}

}  // namespace

void RegisterCast(runtime::KernelTable* table, Context* context) {
  for (DType from : kFloatTypes) {
    for (DType to : kFloatTypes) table->Add(ir::OpKind::kCast, {from}, {to}, FloatCast(context));
  }
  for (DType from : kOtherTypes) {
    for (DType to : kOtherTypes) table->Add(ir::OpKind::kCast, {from}, {to}, OtherCast(context));
    for (DType data : kDataTypes) {
      table->Add(ir::OpKind::kCast, {from}, {data}, OtherCast(context));
      table->Add(ir::OpKind::kCast, {data}, {from}, OtherCast(context));
    }
  }
}

}  // namespace ampd::cuda
