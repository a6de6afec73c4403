// Element types of tensors.
#ifndef AMPD_ENGINE_CORE_DTYPE_H_
#define AMPD_ENGINE_CORE_DTYPE_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace ampd {

enum class DType : uint8_t { kF32, kF16, kBF16, kF8E4M3, kF8E5M2, kI32, kI64, kU8, kBool };

// Bytes of one element.
int64_t SizeOf(DType dtype);

// "f32", "f16", "bf16", "e4m3fn", "e5m2", "i32", "i64", "u8", "bool".
absl::string_view DTypeName(DType dtype);

constexpr bool IsFloat(DType dtype) { return dtype <= DType::kF8E5M2; }
constexpr bool IsHalf(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }
constexpr bool IsF8(DType dtype) { return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2; }

// Largest finite value of a float dtype.
double MaxFinite(DType dtype);

// Half the distance from 1 to the next value: the relative error bound of one rounding to nearest. Higham 2002, section
// 2.1: 2^-24 for f32, 2^-11 for f16, 2^-8 for bf16, 2^-4 for e4m3fn, 2^-3 for e5m2.
double UnitRoundoff(DType dtype);

}  // namespace ampd

#endif  // AMPD_ENGINE_CORE_DTYPE_H_
