// Softmax cross-entropy row by row. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_CROSS_ENTROPY_H_
#define AMPD_ENGINE_BACKEND_CUDA_CROSS_ENTROPY_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "engine/backend/cuda/exp_sum.h"
#include "engine/backend/cuda/rows.h"
#include "engine/backend/cuda/wide.h"
#include "engine/ir/graph.h"

namespace ampd::cuda {

// What the loss compares a row's softmax with: weights q, of which the loss is the sum of q[c] (log sum exp z - z[c]).
enum class GoalKind { kLabel, kSmoothedLabel, kTargets };

struct Goal {
  int64_t classes = 0;
  int64_t columns = 0;  // of a row of logits; those behind the classes are padding, and zeros in the gradient
  float keep = 1;       // share of the label or target
  float even = 0;       // share of every class
  bool ignores = false;
  int64_t ignored = 0;
  const int32_t* labels = nullptr;
  const float* targets = nullptr;
  const float* class_weights = nullptr;  // null: all 1

  Goal(const ir::Attributes& attributes, int64_t n) : classes(attributes.Int("classes", n)), columns(n) {
    const double smoothing = attributes.Double("smoothing");
    keep = static_cast<float>(1 - smoothing);
    even = static_cast<float>(smoothing / static_cast<double>(classes));
    ignores = attributes.Has("ignore_index");
    ignored = attributes.Int("ignore_index");
  }

  __device__ __forceinline__ bool counts(int64_t label) const {
    return label >= 0 && label < classes && !(ignores && label == ignored);
  }
  __device__ __forceinline__ float weight(int64_t c) const {
    return class_weights != nullptr ? class_weights[c] : 1.0f;
  }
};

// The q of one row.
template <GoalKind kKind>
struct RowGoal {
  const Goal& goal;
  int64_t row;
  int label = -1;
  float at_label = 0;  // the label's q, but for its even share
  bool counts = true;

  __device__ __forceinline__ RowGoal(const Goal& g, int64_t r) : goal(g), row(r) {
    if constexpr (kKind != GoalKind::kTargets) {
      label = goal.labels[row];
      counts = goal.counts(label);
      if (counts) at_label = goal.keep * goal.weight(label);
    }
  }

  // Of the `count` classes from `column` on, at least one; 0 behind them, and of the label its even share. Packs that
  // reach behind the last class are none with weights or targets in memory.
  template <int kWidth, typename Count>
  __device__ __forceinline__ void Get(int64_t column, Count count, float (&q)[kWidth]) const {
    float weights[kWidth];
    LoadOr(1.0f, goal.class_weights, column, weights);
    if constexpr (kKind == GoalKind::kTargets) LoadFloats(goal.targets + row * goal.classes + column, q);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float even = goal.even * weights[j];
      const float all = kKind == GoalKind::kTargets ? goal.keep * q[j] * weights[j] + even : even;
      q[j] = j < count ? all : 0.0f;
    }
  }
  // Of the label.
  __device__ __forceinline__ float OfLabel() const {
    return kKind == GoalKind::kLabel ? at_label : at_label + goal.even * goal.weight(label);
  }
};

struct RowSums {
  ExpSum exp;
  double q;      // sum of q
  double q_dot;  // sum of q (z - the largest); 0 unless asked for
};

template <GoalKind kKind, bool kDot, typename Team, typename T>
__device__ __forceinline__ RowSums SumsOf(const RowGoal<kKind>& goal, const Row<T, Team>& z, const T* row) {
  const int64_t classes = goal.goal.classes;
  double of_label = 0;
  float label = 0;
  if constexpr (kKind != GoalKind::kTargets) {
    of_label = goal.at_label;
    if constexpr (kDot) label = Load(row[goal.label]);
  }
  const auto dot_of_label = [&](float largest) {
    return of_label * (static_cast<double>(label) - static_cast<double>(largest));
  };
  if constexpr (kKind == GoalKind::kLabel) {
    const ExpSum exp = ExpSumOf<Team, true>(z, classes, NoVisit());
    return {exp, of_label, kDot ? dot_of_label(exp.largest) : 0.0};
  } else {
    // Until the largest is known, differences from the first stand for those from it: of logits that are large and
    // nearly equal they lose nothing. With targets that would cost registers.
    const float first = kDot && kKind == GoalKind::kSmoothedLabel ? Load(row[0]) : 0.0f;
    Wide q_sum{}, q_dot{};
    const ExpSum exp = ExpSumOf<Team, true>(z, classes, [&](auto column, const float(&v)[Team::kWidth], auto count) {
      float q[Team::kWidth];
      goal.Get(column, count, q);
      q_sum += Wide(PairwiseSum(q));
      if constexpr (kDot) {
#pragma unroll
        for (int j = 0; j < Team::kWidth; ++j) q[j] = j < count ? q[j] * (v[j] - first) : 0.0f;
        q_dot += Wide(PairwiseSum(q));
      }
    });
    const double q = Team::Sum(ToDouble(q_sum));
    double dot = 0;
    if constexpr (kDot) {
      const double above = static_cast<double>(exp.largest) - static_cast<double>(first);
      dot = Team::Sum(ToDouble(q_dot)) - above * q;
      if constexpr (kKind == GoalKind::kSmoothedLabel) dot += dot_of_label(exp.largest);
    }
    return {exp, q + of_label, dot};
  }
}

// The losses of all rows, by every team there is, and how much each row counts.
template <typename Team, GoalKind kKind, typename T>
__device__ __forceinline__ void CrossEntropyOfRows(const T* __restrict__ logits, const Goal& goal, int64_t rows,
                                                   float* __restrict__ losses, float* __restrict__ weights) {
  for (int64_t row = Team::First(); row < rows; row += Team::Step()) {
    const RowGoal<kKind> row_goal(goal, row);
    float loss = 0, weight = 0;
    if (row_goal.counts) {
      const T* z = logits + row * goal.columns;
      const RowSums sums = SumsOf<kKind, true, Team>(row_goal, Row<T, Team>(z, goal.columns), z);
      if (Team::rank() == 0) {
        loss = static_cast<float>(log(sums.exp.sum) * sums.q - sums.q_dot);
        weight = kKind == GoalKind::kTargets ? 0.0f : goal.weight(row_goal.label);
      }
    }
    if (Team::rank() == 0) {
      losses[row] = loss;
      if (kKind != GoalKind::kTargets) weights[row] = weight;
    }
  }
}

// dz = dloss * (sum(q) softmax - q). No __restrict__: `dlogits` may be `logits`.
template <typename Team, GoalKind kKind, typename T>
__device__ __forceinline__ void CrossEntropyGradOfRows(const float* __restrict__ dlosses, const T* logits,
                                                       const Goal& goal, int64_t rows, T* dlogits) {
  for (int64_t row = Team::First(); row < rows; row += Team::Step()) {
    const RowGoal<kKind> row_goal(goal, row);
    const T* z = logits + row * goal.columns;
    T* dz = dlogits + row * goal.columns;
    if (!row_goal.counts) {
      Team::ForEach(goal.columns, [&](int, auto column) { StorePack<Team::kWidth>({}, dz + column); });
      continue;
    }
    const float dloss = dlosses[row];
    // Of the label, whose place may be written over before.
    const bool owns_label = kKind != GoalKind::kTargets && Team::Owns(row_goal.label);
    const float own = owns_label ? Load(z[row_goal.label]) : 0.0f;
    const Row<T, Team> values(z, goal.columns);
    const RowSums sums = SumsOf<kKind, false, Team>(row_goal, values, z);
    const auto factor = static_cast<float>(static_cast<double>(dloss) * sums.q / sums.exp.sum);
    Team::ForEachCounted(goal.classes, goal.columns, [&](int item, auto column, auto count) {
      if (count <= 0) return StorePack<Team::kWidth>({}, dz + column);
      float v[Team::kWidth];
      values.Get(item, column, v);
#pragma unroll
      for (int j = 0; j < Team::kWidth; ++j) v[j] = j < count ? factor * LossExp(v[j] - sums.exp.largest) : 0.0f;
      if constexpr (kKind != GoalKind::kLabel) {
        float q[Team::kWidth];
        row_goal.Get(column, count, q);
#pragma unroll
        for (int j = 0; j < Team::kWidth; ++j) v[j] = j < count ? v[j] - dloss * q[j] : 0.0f;
      }
      StorePack(v, dz + column);
    });
    if (owns_label) {
      const float exp = LossExp(own - sums.exp.largest);
      dz[row_goal.label] = Store<T>(factor * exp - dloss * row_goal.OfLabel());
    }
  }
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_CROSS_ENTROPY_H_
