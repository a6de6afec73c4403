// Copies between memory and a strided view of a tensor. Internal to the CPU backend; thread-safe.
#ifndef AMPD_ENGINE_BACKEND_CPU_STRIDED_H_
#define AMPD_ENGINE_BACKEND_CPU_STRIDED_H_

#include <cstdint>

#include "engine/core/strided_view.h"

namespace ampd::cpu {

// Elements [first, first + n) of a collapsed view of `from`, in order, to `to`. Elements of 1, 2, 4 or 8 bytes.
void ReadStrided(const StridedView& view, int64_t element_bytes, const void* from, int64_t first, int64_t n, void* to);

// Elements [first, first + n) at `from` into a collapsed view of `to`.
void WriteStrided(const StridedView& view, int64_t element_bytes, const void* from, int64_t first, int64_t n, void* to);

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_STRIDED_H_
