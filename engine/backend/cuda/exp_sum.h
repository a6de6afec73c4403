// The sum of e^(x - max) and the maximum of a row, in one pass over it: a running sum is scaled down when a larger
// element comes (Milakov and Gimelshein 2018). For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_EXP_SUM_H_
#define AMPD_ENGINE_BACKEND_CUDA_EXP_SUM_H_

#include <cuda_runtime.h>

#include <limits>

#include "engine/backend/cuda/rows.h"
#include "engine/backend/cuda/wide.h"

namespace ampd::cuda {

inline constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Of a row. NaN or +infinity in it, or nothing but -infinity, make the sum NaN.
struct ExpSum {
  float largest;
  double sum;
};

// One thread's part; -infinity and 0 of no elements. kFinite: -infinity makes the sum NaN, too.
template <bool kFinite>
struct RunningExpSum {
  float largest = kLowest;
  Wide sum{};

  __device__ __forceinline__ static float Term(float x, float most) {
    const float term = expf(x - most);
    return kFinite && x == kLowest ? x - x : term;
  }

  // The first `count` of a pack, perhaps more than there are, at least one.
  template <int kWidth>
  __device__ __forceinline__ void Add(const float (&values)[kWidth], int64_t count = kWidth) {
    float most = largest;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) most = j < count ? MaxOf()(most, values[j]) : most;
    // Also of a NaN; not of -infinity alone, from which nothing can be subtracted.
    if (most != largest) {
      sum = sum * Wide(expf(largest - most));
      largest = most;
    }
    if (!kFinite && most == kLowest) return;
    AddTerms(values, count);
  }

  // Where `largest` is known to be.
  template <int kWidth>
  __device__ __forceinline__ void AddTerms(const float (&values)[kWidth], int64_t count) {
    float terms[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) terms[j] = j < count ? Term(values[j], largest) : 0.0f;
    sum += Wide(PairwiseSum(terms));
  }

  // All threads of a team get the team's.
  template <typename Team>
  __device__ __forceinline__ ExpSum Join() const {
    const float most = Team::Reduce(largest, kLowest, MaxOf());
    const bool nothing = largest == kLowest && most != kLowest;
    const float factor = nothing ? 1.0f : expf(largest - most);
    return {most, Team::Sum(ToDouble(sum) * static_cast<double>(factor))};
  }
};

// Of the first `counted` of the `n` elements of a team's row; also calls visit(column, values) for every pack of it
// that has any of them.
template <typename Team, bool kFinite, typename T, typename Visit>
__device__ __forceinline__ ExpSum ExpSumOf(const Row<T, Team>& row, int64_t n, int64_t counted, const Visit& visit) {
  RunningExpSum<kFinite> running;
  Team::ForEach(n, [&](int item, auto column) {
    if (column >= counted) return;
    float v[Team::kWidth];
    row.Get(item, column, v);
    visit(column, v);
    if constexpr (Team::kItems == kReadAgain) {
      running.Add(v, counted - column);
    } else {
      // The row is at hand, so a second pass costs less than scaling.
#pragma unroll
      for (int j = 0; j < Team::kWidth; ++j) {
        if (column + j < counted) running.largest = MaxOf()(running.largest, v[j]);
      }
    }
  });
  if constexpr (Team::kItems == kReadAgain) {
    return running.template Join<Team>();
  } else {
    running.largest = Team::Reduce(running.largest, kLowest, MaxOf());
    Team::ForEach(n, [&](int item, auto column) {
      if (column >= counted) return;
      float v[Team::kWidth];
      row.Get(item, column, v);
      running.AddTerms(v, counted - column);
    });
    return {running.largest, Team::Sum(ToDouble(running.sum))};
  }
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_EXP_SUM_H_
