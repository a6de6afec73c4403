// Softmax cross-entropy against labels or distributions, a team of threads a row. The gradient may be written over the
// logits: a team has read all of a row, or will read an element only in the thread that then writes it.
#include "engine/backend/cuda/exp_sum.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/rows.h"
#include "engine/backend/cuda/wide.h"

namespace ampd::cuda {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

// What the loss compares a row's softmax with: weights q, of which the loss is the sum of q[c] (log sum exp z - z[c]).
enum class GoalKind { kLabel, kSmoothedLabel, kTargets };

struct Goal {
  int64_t classes = 0;
  float keep = 1;  // share of the label or target
  float even = 0;  // share of every class
  bool ignores = false;
  int64_t ignored = 0;
  const int32_t* labels = nullptr;
  const float* targets = nullptr;
  const float* class_weights = nullptr;  // null: all 1

  Goal(const ir::Attributes& attributes, int64_t n) : classes(n) {
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

  // Of the classes from `column` on.
  template <int kWidth>
  __device__ __forceinline__ void Get(int64_t column, float (&q)[kWidth]) const {
    if constexpr (kKind == GoalKind::kLabel) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) q[j] = column + j == label ? at_label : 0.0f;
    } else {
      float weights[kWidth];
      LoadOr(1.0f, goal.class_weights, column, weights);
      if constexpr (kKind == GoalKind::kTargets) LoadFloats(goal.targets + row * goal.classes + column, q);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const float own =
            kKind == GoalKind::kTargets ? goal.keep * q[j] * weights[j] : (column + j == label ? at_label : 0.0f);
        q[j] = own + goal.even * weights[j];
      }
    }
  }
};

struct RowSums {
  ExpSum exp;
  double q;      // sum of q
  double q_dot;  // sum of q z; 0 unless asked for
};

template <GoalKind kKind, bool kDot, typename Team>
__device__ __forceinline__ RowSums SumsOf(const RowGoal<kKind>& goal, const Row<float, Team>& z, const float* row) {
  const int64_t n = goal.goal.classes;
  if constexpr (kKind == GoalKind::kLabel) {
    const double q = goal.at_label, dot = kDot ? q * static_cast<double>(row[goal.label]) : 0.0;
    return {ExpSumOf<Team, true>(z, n, [](auto, const auto&) {}), q, dot};
  } else {
    Wide q_sum{}, q_dot{};
    const ExpSum exp = ExpSumOf<Team, true>(z, n, [&](auto column, const float(&v)[Team::kWidth]) {
      float q[Team::kWidth];
      goal.Get(column, q);
      q_sum += Wide(PairwiseSum(q));
      if constexpr (kDot) {
#pragma unroll
        for (int j = 0; j < Team::kWidth; ++j) q[j] *= v[j];
        q_dot += Wide(PairwiseSum(q));
      }
    });
    return {exp, Team::Sum(ToDouble(q_sum)), kDot ? Team::Sum(ToDouble(q_dot)) : 0.0};
  }
}

template <typename Team, GoalKind kKind>
__global__ void __launch_bounds__(Team::kMostThreads)
    Losses(Team, const float* __restrict__ logits, Goal goal, int64_t rows, float* __restrict__ losses,
           float* __restrict__ weights) {
  for (int64_t row = Team::First(); row < rows; row += Team::Step()) {
    const RowGoal<kKind> row_goal(goal, row);
    float loss = 0, weight = 0;
    if (row_goal.counts) {
      const float* z = logits + row * goal.classes;
      const RowSums sums = SumsOf<kKind, true, Team>(row_goal, Row<float, Team>(z, goal.classes), z);
      if (Team::rank() == 0) {
        const double log_sum = static_cast<double>(sums.exp.largest) + log(sums.exp.sum);
        loss = static_cast<float>(log_sum * sums.q - sums.q_dot);
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
template <typename Team, GoalKind kKind>
__global__ void __launch_bounds__(Team::kMostThreads)
    LossesGrad(Team, const float* __restrict__ dlosses, const float* logits, Goal goal, int64_t rows, float* dlogits) {
  for (int64_t row = Team::First(); row < rows; row += Team::Step()) {
    const RowGoal<kKind> row_goal(goal, row);
    const float* z = logits + row * goal.classes;
    float* dz = dlogits + row * goal.classes;
    if (!row_goal.counts) {
      Team::ForEach(goal.classes, [&](int, auto column) { StoreFloats<Team::kWidth>({}, dz + column); });
      continue;
    }
    const Row<float, Team> values(z, goal.classes);
    const RowSums sums = SumsOf<kKind, false, Team>(row_goal, values, z);
    const float dloss = dlosses[row];
    const auto factor = static_cast<float>(static_cast<double>(dloss) * sums.q / sums.exp.sum);
    Team::ForEach(goal.classes, [&](int item, auto column) {
      float v[Team::kWidth], q[Team::kWidth];
      values.Get(item, column, v);
      row_goal.Get(column, q);
#pragma unroll
      for (int j = 0; j < Team::kWidth; ++j) v[j] = factor * expf(v[j] - sums.exp.largest) - dloss * q[j];
      StoreFloats(v, dz + column);
    });
  }
}

// Positions of the operands, and what the goal is made of.
struct CrossEntropy {
  GoalKind kind;
  bool gradient;
  Goal goal;
  int64_t rows;
  RowPlan plan;

  CrossEntropy(const NodeDesc& desc, bool soft, bool grad)
      : gradient(grad), goal(desc.attributes, desc.inputs[grad ? 1 : 0].shape.back()) {
    rows = NumElements(desc.inputs[logits()].shape) / goal.classes;
    kind = soft ? GoalKind::kTargets : goal.even != 0 ? GoalKind::kSmoothedLabel : GoalKind::kLabel;
    plan = PlanRows(rows, goal.classes, kPack<float>);
  }
  size_t logits() const { return gradient ? 1 : 0; }

  Goal With(const KernelArgs& args) const {
    Goal with = goal;
    const TensorView& target = args.inputs[logits() + 1];
    (kind == GoalKind::kTargets) ? void(with.targets = target.as<float>()) : void(with.labels = target.as<int32_t>());
    if (args.inputs.size() > logits() + 2) with.class_weights = args.inputs[logits() + 2].as<float>();
    return with;
  }
};

template <GoalKind kKind>
absl::Status LaunchLosses(const Context& context, const std::string& name, const CrossEntropy& c,
                          const KernelArgs& args) {
  float* weights = kKind == GoalKind::kTargets ? nullptr : args.outputs[1].as<float>();
  return VisitRowPlan<kPack<float>>(c.plan, [&](auto team) {
    return LaunchTeams(name, Losses<decltype(team), kKind>, c.plan, context.stream(), team, args.inputs[0].as<float>(),
                       c.With(args), c.rows, args.outputs[0].as<float>(), weights);
  });
}

template <GoalKind kKind>
absl::Status LaunchGrad(const Context& context, const std::string& name, const CrossEntropy& c,
                        const KernelArgs& args) {
  RowPlan plan = c.plan;
  KeepInSharedMemory(c.goal.classes * 4, context.properties(), &plan);
  return VisitSharedRowPlan<kPack<float>>(plan, [&](auto team) {
    return LaunchTeams(name, LossesGrad<decltype(team), kKind>, plan, context.stream(), team,
                       args.inputs[0].as<float>(), args.inputs[1].as<float>(), c.With(args), c.rows,
                       args.outputs[0].as<float>());
  });
}

template <GoalKind kKind>
absl::Status LaunchRows(const Context& context, const std::string& name, const CrossEntropy& c,
                        const KernelArgs& args) {
  return c.gradient ? LaunchGrad<kKind>(context, name, c, args) : LaunchLosses<kKind>(context, name, c, args);
}

runtime::PrepareKernel Prepare(Context* context, bool soft, bool gradient) {
  return [=](const NodeDesc& desc) {
    const CrossEntropy c(desc, soft, gradient);
    return MakeKernel(
        0,
        [=, name = desc.name](const KernelArgs& args) {
          if (c.kind == GoalKind::kTargets) return LaunchRows<GoalKind::kTargets>(*context, name, c, args);
          if (c.kind == GoalKind::kLabel) return LaunchRows<GoalKind::kLabel>(*context, name, c, args);
          return LaunchRows<GoalKind::kSmoothedLabel>(*context, name, c, args);
        },
        gradient ? static_cast<int>(c.logits()) : -1);
  };
}

}  // namespace

void RegisterLosses(runtime::KernelTable* table, Context* context) {
  constexpr DType f = DType::kF32;
  constexpr DType i = DType::kI32;
  table->Add(ir::OpKind::kSoftmaxCrossEntropy, {f, i}, {f, f}, Prepare(context, false, false));
  table->Add(ir::OpKind::kSoftmaxCrossEntropy, {f, i, f}, {f, f}, Prepare(context, false, false));
  table->Add(ir::OpKind::kSoftmaxCrossEntropyGrad, {f, f, i}, {f}, Prepare(context, false, true));
  table->Add(ir::OpKind::kSoftmaxCrossEntropyGrad, {f, f, i, f}, {f}, Prepare(context, false, true));
  table->Add(ir::OpKind::kSoftCrossEntropy, {f, f}, {f}, Prepare(context, true, false));
  table->Add(ir::OpKind::kSoftCrossEntropy, {f, f, f}, {f}, Prepare(context, true, false));
  table->Add(ir::OpKind::kSoftCrossEntropyGrad, {f, f, f}, {f}, Prepare(context, true, true));
  table->Add(ir::OpKind::kSoftCrossEntropyGrad, {f, f, f, f}, {f}, Prepare(context, true, true));
}

}  // namespace ampd::cuda
