// The sum of e^(x - max) and the maximum of a row, in one pass over it: a running sum is scaled down when a larger
// element comes (Milakov and Gimelshein 2018). For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_EXP_SUM_H_
#define AMPD_ENGINE_BACKEND_CUDA_EXP_SUM_H_

#include <cuda_runtime.h>

#include <cmath>
#include <limits>
#include <type_traits>

#include "engine/backend/cuda/rows.h"
#include "engine/backend/cuda/wide.h"

namespace ampd::cuda {

inline constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Of a row. NaN or +infinity in it, or nothing but -infinity, make the sum NaN.
struct ExpSum {
  float largest;
  double sum;
};

// e^x of x <= 0 for losses, which allow for many roundings of their logits: off by at most (4 + 1.3 |x|) 2^-24 of it on
// a GPU (the instruction by 2 units in the last place), and 0 below 2^-126.
__device__ __forceinline__ float LossExp(float x) {
#if defined(__CUDA_ARCH__)
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
  return power;
#else
  return expf(x);
#endif
}

// The other number wins over a NaN.
struct LeastFloat {
  __device__ __forceinline__ float operator()(float a, float b) const { return fminf(a, b); }
};

// One thread's part; -infinity and 0 of no elements. kLoss: the terms are LossExp's, and -infinity makes the sum NaN,
// too.
template <bool kLoss>
struct RunningExpSum {
  float largest = kLowest;
  float least = -kLowest;  // of a loss
  Wide sum{};

  __device__ __forceinline__ static float Exp(float x) {
    if constexpr (kLoss) {
      return LossExp(x);
    } else {
      return expf(x);
    }
  }

  // A number of packs, and of the last one the first `count`, perhaps more than there are, at least one.
  template <int kPacks, int kWidth, typename Count>
  __device__ __forceinline__ void Add(const float (&packs)[kPacks][kWidth], Count count) {
    static_assert(kPacks == 1 || std::is_same_v<Count, std::integral_constant<int, kWidth>>);
    const float before = largest;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) Compare(packs[p], count);
    // Also of a NaN; not of -infinity alone, from which nothing can be subtracted.
    if (largest != before) sum = sum * Wide(Exp(before - largest));
    if (!kLoss && largest == kLowest) return;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) AddTerms(packs[p], count);
  }

  // Finds the largest, without adding anything.
  template <int kWidth, typename Count>
  __device__ __forceinline__ void Compare(const float (&values)[kWidth], Count count) {
    float v[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) v[j] = j < count ? values[j] : values[0];
    largest = MaxOf()(largest, Pairwise(v, MaxOf()));
    if constexpr (kLoss) least = fminf(least, Pairwise(v, LeastFloat()));
  }

  // Where `largest` is known to be.
  template <int kWidth, typename Count>
  __device__ __forceinline__ void AddTerms(const float (&values)[kWidth], Count count) {
    float terms[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) terms[j] = j < count ? Exp(values[j] - largest) : 0.0f;
    sum += Wide(PairwiseSum(terms));
  }

  __device__ __forceinline__ double Total() const {
    return kLoss && least == kLowest ? std::numeric_limits<double>::quiet_NaN() : ToDouble(sum);
  }

  // All threads of a team get the team's.
  template <typename Team>
  __device__ __forceinline__ ExpSum Join() const {
    const float most = Team::Reduce(largest, kLowest, MaxOf());
    const bool nothing = largest == kLowest && most != kLowest;
    const float factor = nothing ? 1.0f : Exp(largest - most);
    return {most, Team::Sum(Total() * static_cast<double>(factor))};
  }

 private:
  template <int kWidth, typename Combine>
  __device__ __forceinline__ static float Pairwise(const float (&of)[kWidth], Combine combine) {
    float values[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[j] = of[j];
#pragma unroll
    for (int half = kWidth / 2; half > 0; half /= 2) {
#pragma unroll
      for (int j = 0; j < half; ++j) values[j] = combine(values[j], values[j + half]);
    }
    return values[0];
  }
};

// For ExpSumOf, if nothing else is done with the packs.
struct NoVisit {
  template <typename Values, typename Count>
  __device__ __forceinline__ void operator()(int64_t, const Values&, Count) const {}
};

// ExpSumOf for rows that are not kept, in one pass. Several packs at a time, for which the sum is scaled once; fewer
// where a visit needs registers, too.
template <typename Team, bool kLoss, typename T, typename Visit>
__device__ __forceinline__ ExpSum ExpSumInOnePass(const Row<T, Team>& row, int64_t counted, const Visit& visit) {
  constexpr int kWidth = Team::kWidth, kPacks = std::is_same_v<Visit, NoVisit> ? 4 : 2;
  constexpr std::integral_constant<int, kWidth> kAll;
  RunningExpSum<kLoss> running;
  const int64_t step = int64_t{kWidth} * Team::size(), whole = counted / kWidth * kWidth;
  int64_t column = static_cast<int64_t>(Team::rank()) * kWidth;
#pragma unroll 1
  for (; column + (kPacks - 1) * step < whole; column += kPacks * step) {
    float v[kPacks][kWidth];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) row.Get(0, column + p * step, v[p]);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) visit(column + p * step, v[p], kAll);
    running.Add(v, kAll);
  }
  const auto one = [&](auto count) {
    float v[1][kWidth];
    row.Get(0, column, v[0]);
    visit(column, v[0], count);
    running.Add(v, count);
  };
#pragma unroll 1
  for (; column < whole; column += step) one(kAll);
  if (column < counted) one(counted - column);
  return running.template Join<Team>();
}

// Of the first `counted` of the elements of a team's row; also calls visit(column, values, count) for every pack of it
// that has any of them, `count` as ForEachCounted's.
template <typename Team, bool kLoss, typename T, typename Visit>
__device__ __forceinline__ ExpSum ExpSumOf(const Row<T, Team>& row, int64_t counted, const Visit& visit) {
  if constexpr (Team::kItems == kReadAgain) {
    return ExpSumInOnePass<Team, kLoss>(row, counted, visit);
  } else {
    // The row is at hand, so a second pass costs less than scaling.
    RunningExpSum<kLoss> running;
    Team::ForEachCounted(counted, counted, [&](int item, auto column, auto count) {
      float v[Team::kWidth];
      row.Get(item, column, v);
      visit(column, v, count);
      running.Compare(v, count);
    });
    running.largest = Team::Reduce(running.largest, kLowest, MaxOf());
    Team::ForEachCounted(counted, counted, [&](int item, auto column, auto count) {
      float v[Team::kWidth];
      row.Get(item, column, v);
      running.AddTerms(v, count);
    });
    return {running.largest, Team::Sum(running.Total())};
  }
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_EXP_SUM_H_
