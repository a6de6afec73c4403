#include <algorithm>
#include <limits>

#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/parallel.h"

namespace ampd::cpu {
namespace {

constexpr DType kFloatTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2};

void ToFloat8Saturating(const float* from, int64_t n, const TensorView& y, int64_t first) {
  if (y.dtype == DType::kF8E4M3) return FloatToFloat8Saturating(from, n, y.as<Float8E4M3>() + first);
  FloatToFloat8Saturating(from, n, y.as<Float8E5M2>() + first);
}

void CastSaturating(int threads, const TensorView& x, const TensorView& y) {
  ParallelRange(PartsFor(threads, y.size(), kMinElementsPerThread), y.size(), kBlock,
                [&](int, int64_t begin, int64_t end) {
                  alignas(64) float buffer[kBlock];
                  for (int64_t i = begin; i < end; i += kBlock) {
                    const int64_t m = std::min(kBlock, end - i);
                    ToFloat8Saturating(Load(x, i, m, buffer), m, y, i);
                  }
                });
}

std::unique_ptr<runtime::Kernel> PrepareCast(const runtime::NodeDesc& desc) {
  if (desc.attributes.Bool("saturate") && IsF8(desc.outputs[0].dtype)) {
    return MakeKernel(0, [threads = desc.threads](const runtime::KernelArgs& args) {
      CastSaturating(threads, args.inputs[0], args.outputs[0]);
    });
  }
  return MakeKernel(0, [threads = desc.threads](const runtime::KernelArgs& args) {
    const TensorView& x = args.inputs[0];
    const TensorView& y = args.outputs[0];
    ParallelConvert(threads, x.dtype, x.data, y.size(), y.dtype, y.data);
  });
}

// Between floats, integers and bools, by way of double or int64.

// Toward zero; what is out of range becomes the nearest limit, NaN 0.
template <typename To>
To FromDouble(double x) {
  constexpr double kLow = static_cast<double>(std::numeric_limits<To>::min());
  // 2^31, 2^63 or 2^8: exact, and one past the largest.
  constexpr double kPast = 2.0 * static_cast<double>(std::numeric_limits<To>::max() / 2 + 1);
  if (x != x) return 0;
  if (x >= kPast) return std::numeric_limits<To>::max();
  return x < kLow ? std::numeric_limits<To>::min() : static_cast<To>(x);
}

// An f32 that rounds to f16 and bf16 as `x` itself does: its last bit is set when anything was cut off.
float StickyFloat(int64_t x) {
  uint64_t magnitude = x < 0 ? -static_cast<uint64_t>(x) : static_cast<uint64_t>(x);
  int shift = 0;
  for (; magnitude >> shift >= uint64_t{1} << 24; ++shift) {
  }
  if (shift > 0) {
    const uint64_t cut = magnitude & ((uint64_t{1} << shift) - 1);
    magnitude = (magnitude >> shift | (cut != 0 ? 1 : 0)) << shift;
  }
  const float value = static_cast<float>(magnitude);
  return x < 0 ? -value : value;
}

template <typename From>
void FromIntegers(const From* from, int64_t n, DType dtype, void* to) {
  if (dtype == DType::kF32) {
    for (int64_t i = 0; i < n; ++i) static_cast<float*>(to)[i] = static_cast<float>(from[i]);
  } else if (IsFloat(dtype)) {
    alignas(64) float block[kBlock];
    for (int64_t i = 0; i < n; ++i) block[i] = StickyFloat(static_cast<int64_t>(from[i]));
    FromF32(block, n, dtype, to);
  } else if (dtype == DType::kI32) {
    for (int64_t i = 0; i < n; ++i) static_cast<int32_t*>(to)[i] = static_cast<int32_t>(from[i]);
  } else if (dtype == DType::kI64) {
    for (int64_t i = 0; i < n; ++i) static_cast<int64_t*>(to)[i] = static_cast<int64_t>(from[i]);
  } else if (dtype == DType::kU8) {
    for (int64_t i = 0; i < n; ++i) static_cast<uint8_t*>(to)[i] = static_cast<uint8_t>(from[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) static_cast<uint8_t*>(to)[i] = from[i] != 0 ? 1 : 0;
  }
}

void FromFloats(DType from_dtype, const void* from, int64_t n, DType dtype, void* to) {
  alignas(64) float block[kBlock];
  ToF32(from_dtype, from, n, block);
  for (int64_t i = 0; i < n; ++i) {
    const double x = static_cast<double>(block[i]);
    if (dtype == DType::kI32) static_cast<int32_t*>(to)[i] = FromDouble<int32_t>(x);
    if (dtype == DType::kI64) static_cast<int64_t*>(to)[i] = FromDouble<int64_t>(x);
    if (dtype == DType::kU8) static_cast<uint8_t*>(to)[i] = FromDouble<uint8_t>(x);
    if (dtype == DType::kBool) static_cast<uint8_t*>(to)[i] = x != 0 ? 1 : 0;
  }
}

void CastBlock(DType from_dtype, const void* from, int64_t n, DType dtype, void* to) {
  if (IsFloat(from_dtype)) return FromFloats(from_dtype, from, n, dtype, to);
  if (from_dtype == DType::kI32) return FromIntegers(static_cast<const int32_t*>(from), n, dtype, to);
  if (from_dtype == DType::kI64) return FromIntegers(static_cast<const int64_t*>(from), n, dtype, to);
  FromIntegers(static_cast<const uint8_t*>(from), n, dtype, to);
}

std::unique_ptr<runtime::Kernel> PrepareIntegerCast(const runtime::NodeDesc& desc) {
  return MakeKernel(0, [threads = desc.threads](const runtime::KernelArgs& args) {
    const TensorView& x = args.inputs[0];
    const TensorView& y = args.outputs[0];
    const int64_t n = y.size(), from_bytes = SizeOf(x.dtype), to_bytes = SizeOf(y.dtype);
    ParallelRange(PartsFor(threads, n, kMinElementsPerThread), n, kBlock, [&](int, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i += kBlock) {
        CastBlock(x.dtype, x.as<char>() + i * from_bytes, std::min(kBlock, end - i), y.dtype,
                  y.as<char>() + i * to_bytes);
      }
    });
  });
}

constexpr DType kOtherTypes[] = {DType::kI32, DType::kI64, DType::kU8, DType::kBool};

}  // namespace

void RegisterCast(runtime::KernelTable* table) {
  for (DType from : kFloatTypes) {
    for (DType to : kFloatTypes) table->Add(ir::OpKind::kCast, {from}, {to}, PrepareCast);
  }
  for (DType from : kOtherTypes) {
    for (DType to : kOtherTypes) table->Add(ir::OpKind::kCast, {from}, {to}, PrepareIntegerCast);
    for (DType data : kDataTypes) {
      table->Add(ir::OpKind::kCast, {from}, {data}, PrepareIntegerCast);
      table->Add(ir::OpKind::kCast, {data}, {from}, PrepareIntegerCast);
    }
  }
}

}  // namespace ampd::cpu
