// What 8-bit codes stand for.
#ifndef AMPD_ENGINE_BACKEND_CPU_QUANTIZE_H_
#define AMPD_ENGINE_BACKEND_CPU_QUANTIZE_H_

#include "engine/core/tensor.h"

namespace ampd::cpu {

// y = x / a / b, rounded to y's dtype, over up to `threads` threads; x is f32, and may be y where that is f32, too.
void Dequantize(int threads, const TensorView& x, float a, float b, const TensorView& y);

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_QUANTIZE_H_
