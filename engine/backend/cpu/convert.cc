#include "engine/backend/cpu/convert.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "engine/backend/cpu/parallel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ampd::cpu {
namespace {

void HalfToFloatScalar(const Half* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = ToFloat(from[i]);
}

void FloatToHalfScalar(const float* from, int64_t n, Half* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = ToHalf(from[i]);
}

#if defined(__x86_64__)

__attribute__((target("avx2,f16c"))) void HalfToFloatF16c(const Half* from, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  HalfToFloatScalar(from + i, n - i, to + i);
}

__attribute__((target("avx2,f16c"))) void FloatToHalfF16c(const float* from, int64_t n, Half* to) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 x = _mm256_loadu_ps(from + i);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  FloatToHalfScalar(from + i, n - i, to + i);
}

__attribute__((target("avx512f"))) void HalfToFloatAvx512(const Half* from, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))));
  }
  HalfToFloatScalar(from + i, n - i, to + i);
}

__attribute__((target("avx512f"))) void FloatToHalfAvx512(const float* from, int64_t n, Half* to) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 x = _mm512_loadu_ps(from + i);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  FloatToHalfScalar(from + i, n - i, to + i);
}

#endif

struct HalfRoutines {
  void (*to_float)(const Half*, int64_t, float*) = HalfToFloatScalar;
  void (*from_float)(const float*, int64_t, Half*) = FloatToHalfScalar;
};

HalfRoutines PickHalfRoutines() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {HalfToFloatAvx512, FloatToHalfAvx512};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return {HalfToFloatF16c, FloatToHalfF16c};
#endif
  return {};
}

const HalfRoutines& Routines() {
  static const HalfRoutines routines = PickHalfRoutines();
  return routines;
}

AMPD_CPU_CLONES void BFloat16ToFloatLoop(const uint16_t* __restrict from, int64_t n, uint32_t* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<uint32_t>(from[i]) << 16;
}

// ToBFloat16 without branches.
AMPD_CPU_CLONES void FloatToBFloat16Loop(const uint32_t* __restrict from, int64_t n, uint16_t* __restrict to) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t u = from[i];
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const uint32_t quiet = (u >> 16) | 0x0040u;
    to[i] = static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
  }
}

// All 256 codes; a look-up is faster than arithmetic on single bytes.
template <typename Float8>
std::array<float, 256> MakeFloat8Table() {
  std::array<float, 256> table;
  for (int code = 0; code < 256; ++code) table[code] = ToFloat(Float8{static_cast<uint8_t>(code)});
  return table;
}

template <typename Float8>
void Float8ToFloatLoop(const Float8* from, int64_t n, float* to) {
  static const std::array<float, 256> table = MakeFloat8Table<Float8>();
  for (int64_t i = 0; i < n; ++i) to[i] = table[from[i].bits];
}

AMPD_CPU_CLONES void FloatToE4M3Loop(const float* __restrict from, int64_t n, Float8E4M3* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = ToFloat8E4M3(from[i]);
}
AMPD_CPU_CLONES void FloatToE4M3SaturatingLoop(const float* __restrict from, int64_t n, Float8E4M3* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = ToFloat8E4M3Saturating(from[i]);
}
AMPD_CPU_CLONES void FloatToE5M2Loop(const float* __restrict from, int64_t n, Float8E5M2* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = ToFloat8E5M2(from[i]);
}
AMPD_CPU_CLONES void FloatToE5M2SaturatingLoop(const float* __restrict from, int64_t n, Float8E5M2* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = ToFloat8E5M2Saturating(from[i]);
}

AMPD_CPU_CLONES void Tf32Loop(const float* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = ampd::RoundToTf32(from[i]);
}

}  // namespace

void Float8ToFloat(const Float8E4M3* from, int64_t n, float* to) { Float8ToFloatLoop(from, n, to); }
void Float8ToFloat(const Float8E5M2* from, int64_t n, float* to) { Float8ToFloatLoop(from, n, to); }
void FloatToFloat8(const float* from, int64_t n, Float8E4M3* to) { FloatToE4M3Loop(from, n, to); }
void FloatToFloat8(const float* from, int64_t n, Float8E5M2* to) { FloatToE5M2Loop(from, n, to); }
void FloatToFloat8Saturating(const float* from, int64_t n, Float8E4M3* to) { FloatToE4M3SaturatingLoop(from, n, to); }
void FloatToFloat8Saturating(const float* from, int64_t n, Float8E5M2* to) { FloatToE5M2SaturatingLoop(from, n, to); }
void RoundToTf32(const float* from, int64_t n, float* to) { Tf32Loop(from, n, to); }

void HalfToFloat(const Half* from, int64_t n, float* to) { Routines().to_float(from, n, to); }

void FloatToHalf(const float* from, int64_t n, Half* to) { Routines().from_float(from, n, to); }

void BFloat16ToFloat(const BFloat16* from, int64_t n, float* to) {
  BFloat16ToFloatLoop(reinterpret_cast<const uint16_t*>(from), n, reinterpret_cast<uint32_t*>(to));
}

void FloatToBFloat16(const float* from, int64_t n, BFloat16* to) {
  FloatToBFloat16Loop(reinterpret_cast<const uint32_t*>(from), n, reinterpret_cast<uint16_t*>(to));
}

void ToF32(DType dtype, const void* from, int64_t n, float* to) {
  switch (dtype) {
    case DType::kF16:
      return HalfToFloat(static_cast<const Half*>(from), n, to);
    case DType::kBF16:
      return BFloat16ToFloat(static_cast<const BFloat16*>(from), n, to);
    case DType::kF8E4M3:
      return Float8ToFloat(static_cast<const Float8E4M3*>(from), n, to);
    case DType::kF8E5M2:
      return Float8ToFloat(static_cast<const Float8E5M2*>(from), n, to);
    default:
      std::memcpy(to, from, n * sizeof(float));
  }
}

void FromF32(const float* from, int64_t n, DType dtype, void* to) {
  switch (dtype) {
    case DType::kF16:
      return FloatToHalf(from, n, static_cast<Half*>(to));
    case DType::kBF16:
      return FloatToBFloat16(from, n, static_cast<BFloat16*>(to));
    case DType::kF8E4M3:
      return FloatToFloat8(from, n, static_cast<Float8E4M3*>(to));
    case DType::kF8E5M2:
      return FloatToFloat8(from, n, static_cast<Float8E5M2*>(to));
    default:
      std::memcpy(to, from, n * sizeof(float));
  }
}

void RoundThrough(DType dtype, const float* from, int64_t n, float* to) {
  if (dtype == DType::kF32) {
    if (to != from) std::memcpy(to, from, n * sizeof(float));
    return;
  }
  uint16_t rounded[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t m = std::min(kBlock, n - i);
    FromF32(from + i, m, dtype, rounded);
    ToF32(dtype, rounded, m, to + i);
  }
}

void ParallelToF32(int threads, DType dtype, const void* from, int64_t n, float* to) {
  ParallelRange(PartsFor(threads, n, kMinElementsPerThread), n, kBlock, [&](int, int64_t begin, int64_t end) {
    ToF32(dtype, static_cast<const char*>(from) + begin * SizeOf(dtype), end - begin, to + begin);
  });
}

void ParallelFromF32(int threads, const float* from, int64_t n, DType dtype, void* to) {
  ParallelRange(PartsFor(threads, n, kMinElementsPerThread), n, kBlock, [&](int, int64_t begin, int64_t end) {
    FromF32(from + begin, end - begin, dtype, static_cast<char*>(to) + begin * SizeOf(dtype));
  });
}

void ParallelRoundThrough(int threads, DType dtype, const float* from, int64_t n, float* to) {
  ParallelRange(PartsFor(threads, n, kMinElementsPerThread), n, kBlock,
                [&](int, int64_t begin, int64_t end) { RoundThrough(dtype, from + begin, end - begin, to + begin); });
}

void ParallelConvert(int threads, DType from_dtype, const void* from, int64_t n, DType to_dtype, void* to) {
  if (to_dtype == DType::kF32) return ParallelToF32(threads, from_dtype, from, n, static_cast<float*>(to));
  if (from_dtype == DType::kF32) return ParallelFromF32(threads, static_cast<const float*>(from), n, to_dtype, to);
  ParallelRange(PartsFor(threads, n, kMinElementsPerThread), n, kBlock, [&](int, int64_t begin, int64_t end) {
    alignas(64) float block[kBlock];
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t m = std::min(kBlock, end - i);
      ToF32(from_dtype, static_cast<const char*>(from) + i * SizeOf(from_dtype), m, block);
      FromF32(block, m, to_dtype, static_cast<char*>(to) + i * SizeOf(to_dtype));
    }
  });
}

}  // namespace ampd::cpu
