#include "engine/backend/cpu/channel_loops.h"

#include "engine/backend/cpu/parallel.h"

namespace ampd::cpu {

AMPD_CPU_CLONES void MomentsLoop(const float* __restrict x, const float* __restrict shift, int64_t n,
                                 double* __restrict sum, double* __restrict square) {
  for (int64_t i = 0; i < n; ++i) {
    const double d = static_cast<double>(x[i]) - static_cast<double>(shift[i]);
    sum[i] += d;
    square[i] += d * d;
  }
}

AMPD_CPU_CLONES void NormalizeLoop(const float* __restrict x, const float* __restrict mean,
                                   const float* __restrict factor, const float* __restrict bias, int64_t n,
                                   float* __restrict y) {
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean[i]) * factor[i] + bias[i];
}

AMPD_CPU_CLONES void GradSumsLoop(const float* __restrict dy, const float* __restrict x, const float* __restrict mean,
                                  int64_t n, double* __restrict sum, double* __restrict product) {
  for (int64_t i = 0; i < n; ++i) {
    const double g = static_cast<double>(dy[i]);
    sum[i] += g;
    product[i] += g * (static_cast<double>(x[i]) - static_cast<double>(mean[i]));
  }
}

}  // namespace ampd::cpu
