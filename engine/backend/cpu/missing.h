// What is read where an index is outside: NaN, which a training step reports, or 0 where a dtype has no NaN.
#ifndef AMPD_ENGINE_BACKEND_CPU_MISSING_H_
#define AMPD_ENGINE_BACKEND_CPU_MISSING_H_

#include <cstdint>
#include <cstring>
#include <limits>

#include "engine/backend/cpu/convert.h"

namespace ampd::cpu {

inline void FillMissing(DType dtype, int64_t n, char* to) {
  const int64_t bytes = SizeOf(dtype);
  if (!IsFloat(dtype)) {
    std::memset(to, 0, n * bytes);
    return;
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int64_t i = 0; i < n; ++i) FromF32(&nan, 1, dtype, to + i * bytes);
}

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_MISSING_H_
