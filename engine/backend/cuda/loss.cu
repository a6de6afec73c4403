// Softmax cross-entropy against labels or distributions, a team of threads a row. Logits of 16 bits are widened as they
// are read, and their gradient is rounded as it is written. The gradient may be written over the logits: a team has
// read all of a row, or will read an element only in the thread that then writes it.
#include "engine/backend/cuda/cross_entropy.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/kernels.h"

namespace ampd::cuda {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

constexpr int64_t kManyRows = 512;

template <typename Team, GoalKind kKind, typename T>
__global__ void __launch_bounds__(Team::kMostThreads, 1)
    Losses(Team, const T* __restrict__ logits, Goal goal, int64_t rows, float* __restrict__ losses,
           float* __restrict__ weights) {
  CrossEntropyOfRows<Team, kKind>(logits, goal, rows, losses, weights);
}

template <typename Team, GoalKind kKind, typename T>
__global__ void __launch_bounds__(Team::kMostThreads, 1)
    LossesGrad(Team, const float* __restrict__ dlosses, const T* logits, Goal goal, int64_t rows, T* dlogits) {
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
    rows = NumElements(desc.inputs[logits()].shape) / goal.columns;
    kind = soft ? GoalKind::kTargets : goal.even != 0 ? GoalKind::kSmoothedLabel : GoalKind::kLabel;
    // Targets and weights have a number for each class, none for the padding.
    const bool by_class = soft || desc.inputs.size() > logits() + 2;
    const bool packs = goal.classes == goal.columns || !by_class;
    plan = PlanRows(rows, goal.columns, packs ? static_cast<int>(16 / SizeOf(desc.inputs[logits()].dtype)) : 0);
    // Rows that are read once, and enough to fill any GPU: of smaller blocks some compute while others wait for memory.
    if (!grad && !plan.warp && !plan.kept && rows >= kManyRows) plan.threads = 256;
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

template <typename T, GoalKind kKind>
absl::Status LaunchLosses(const Context& context, const std::string& name, const CrossEntropy& c,
                          const KernelArgs& args) {
  float* weights = kKind == GoalKind::kTargets ? nullptr : args.outputs[1].as<float>();
  return VisitRowPlan<kPack<T>>(c.plan, [&](auto team) {
    return LaunchTeams(name, Losses<decltype(team), kKind, T>, c.plan, context.stream(), team, args.inputs[0].as<T>(),
                       c.With(args), c.rows, args.outputs[0].as<float>(), weights);
  });
}

template <typename T, GoalKind kKind>
absl::Status LaunchGrad(const Context& context, const std::string& name, const CrossEntropy& c,
                        const KernelArgs& args) {
  RowPlan plan = c.plan;
  KeepInSharedMemory(c.goal.columns * static_cast<int64_t>(sizeof(T)), context.properties(), &plan);
  return VisitSharedRowPlan<kPack<T>>(plan, [&](auto team) {
    return LaunchTeams(name, LossesGrad<decltype(team), kKind, T>, plan, context.stream(), team,
                       args.inputs[0].as<float>(), args.inputs[1].as<T>(), c.With(args), c.rows,
                       args.outputs[0].as<T>());
  });
}

template <GoalKind kKind>
absl::Status LaunchRows(const Context& context, const std::string& name, const CrossEntropy& c,
                        const KernelArgs& args) {
  return VisitData(args.inputs[c.logits()].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return c.gradient ? LaunchGrad<T, kKind>(context, name, c, args) : LaunchLosses<T, kKind>(context, name, c, args);
  });
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
  for (const DType z : kDataTypes) {
    table->Add(ir::OpKind::kSoftmaxCrossEntropy, {z, i}, {f, f}, Prepare(context, false, false));
    table->Add(ir::OpKind::kSoftmaxCrossEntropy, {z, i, f}, {f, f}, Prepare(context, false, false));
    table->Add(ir::OpKind::kSoftmaxCrossEntropyGrad, {f, z, i}, {z}, Prepare(context, false, true));
    table->Add(ir::OpKind::kSoftmaxCrossEntropyGrad, {f, z, i, f}, {z}, Prepare(context, false, true));
    table->Add(ir::OpKind::kSoftCrossEntropy, {z, f}, {f}, Prepare(context, true, false));
    table->Add(ir::OpKind::kSoftCrossEntropy, {z, f, f}, {f}, Prepare(context, true, false));
    table->Add(ir::OpKind::kSoftCrossEntropyGrad, {f, z, f}, {z}, Prepare(context, true, true));
    table->Add(ir::OpKind::kSoftCrossEntropyGrad, {f, z, f, f}, {z}, Prepare(context, true, true));
  }
}

}  // namespace ampd::cuda
