// What batch and group norm do to every element of a run of `n`; all operands are as long as the run.
#ifndef AMPD_ENGINE_BACKEND_CPU_CHANNEL_LOOPS_H_
#define AMPD_ENGINE_BACKEND_CPU_CHANNEL_LOOPS_H_

#include <cstdint>

namespace ampd::cpu {

// Adds x - shift to `sum` and its square to `square`. Double holds the square of an fp32 difference exactly, so the
// variance of large, nearly equal values survives the subtraction of the mean's square.
void MomentsLoop(const float* x, const float* shift, int64_t n, double* sum, double* square);

// y = (x - mean) * factor + bias. Centring first keeps y accurate where the mean is large against the deviation.
void NormalizeLoop(const float* x, const float* mean, const float* factor, const float* bias, int64_t n, float* y);

// Adds dy to `sum` and dy * (x - mean) to `product`.
void GradSumsLoop(const float* dy, const float* x, const float* mean, int64_t n, double* sum, double* product);

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_CHANNEL_LOOPS_H_
