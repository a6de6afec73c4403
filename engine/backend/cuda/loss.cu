// Softmax cross-entropy against labels or distributions, a team of threads a row. The gradient may be written over the
// logits: a team has read all of a row, or will read an element only in the thread that then writes it.
#include "engine/backend/cuda/cross_entropy.h"
#include "engine/backend/cuda/kernels.h"

namespace ampd::cuda {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

template <typename Team, GoalKind kKind>
__global__ void __launch_bounds__(Team::kMostThreads)
    Losses(Team, const float* __restrict__ logits, Goal goal, int64_t rows, float* __restrict__ losses,
           float* __restrict__ weights) {
  CrossEntropyOfRows<Team, kKind>(logits, goal, rows, losses, weights);
}

template <typename Team, GoalKind kKind>
__global__ void __launch_bounds__(Team::kMostThreads)
    LossesGrad(Team, const float* __restrict__ dlosses, const float* logits, Goal goal, int64_t rows, float* dlogits) {
  CrossEntropyGradOfRows<Team, kKind>(dlosses, logits, goal, rows, dlogits);
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
