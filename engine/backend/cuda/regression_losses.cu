// Losses of a prediction against a target, averaged over all axes but the first. In double, as on the CPU: they are
// small beside the networks that they judge.
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/regression_loss.h"
#include "engine/backend/cuda/rows.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

constexpr int kThreads = 256;

template <ops::LossFunction kElement, typename Team>
__global__ void __launch_bounds__(Team::kMostThreads)
    Losses(Team, LossSamples s, LossOperands o, float* __restrict__ losses) {
  LossesOfSamples<kElement, Team>(s, o, losses);
}

template <ops::LossFunction kElement>
__global__ void __launch_bounds__(kThreads)
    LossesGrad(LossSamples s, LossOperands o, const float* __restrict__ dlosses, float* __restrict__ dprediction) {
  LossesGradOfSamples<kElement>(s, o, dlosses, dprediction);
}

template <ops::LossFunction kElement>
runtime::PrepareKernel Forward(Context* context) {
  return [=](const NodeDesc& desc) -> absl::StatusOr<std::unique_ptr<runtime::Kernel>> {
    AMPD_ASSIGN_OR_RETURN(const LossSamples samples, LossSamples::Of(desc, desc.inputs[0].shape));
    const RowPlan plan = PlanRows(samples.samples, samples.features, 1);
    return MakeKernel(0, [=, name = desc.name](const KernelArgs& args) {
      return VisitOnePass<1>(plan, [&](auto team) {
        return Launch(name, Losses<kElement, decltype(team)>, plan.blocks, plan.threads, 0, context->stream(), team,
                      samples, LossOperands::Of(args, 0), args.outputs[0].as<float>());
      });
    });
  };
}

template <ops::LossFunction kElement>
runtime::PrepareKernel Backward(Context* context) {
  return [=](const NodeDesc& desc) -> absl::StatusOr<std::unique_ptr<runtime::Kernel>> {
    AMPD_ASSIGN_OR_RETURN(const LossSamples samples, LossSamples::Of(desc, desc.inputs[1].shape));
    const unsigned blocks = BlocksFor(samples.samples * samples.features, kThreads, context->properties().sm_count);
    return MakeKernel(0, [=, name = desc.name](const KernelArgs& args) {
      return Launch(name, LossesGrad<kElement>, blocks, kThreads, 0, context->stream(), samples,
                    LossOperands::Of(args, 1), args.inputs[0].as<float>(), args.outputs[0].as<float>());
    });
  };
}

}  // namespace

void RegisterRegressionLosses(runtime::KernelTable* table, Context* context) {
  constexpr DType f = DType::kF32;
  using ir::OpKind;
  table->Add(OpKind::kSquaredError, {f, f}, {f}, Forward<ops::SquaredError>(context));
  table->Add(OpKind::kSquaredErrorGrad, {f, f, f}, {f}, Backward<ops::SquaredErrorGrad>(context));
  table->Add(OpKind::kL1Loss, {f, f}, {f}, Forward<ops::L1Loss>(context));
  table->Add(OpKind::kL1LossGrad, {f, f, f}, {f}, Backward<ops::L1LossGrad>(context));
  table->Add(OpKind::kSmoothL1Loss, {f, f}, {f}, Forward<ops::SmoothL1Loss>(context));
  table->Add(OpKind::kSmoothL1LossGrad, {f, f, f}, {f}, Backward<ops::SmoothL1LossGrad>(context));
  table->Add(OpKind::kHingeLoss, {f, f}, {f}, Forward<ops::HingeLoss>(context));
  table->Add(OpKind::kHingeLossGrad, {f, f, f}, {f}, Backward<ops::HingeLossGrad>(context));
  table->Add(OpKind::kSigmoidCrossEntropy, {f, f}, {f}, Forward<ops::SigmoidCrossEntropy>(context));
  table->Add(OpKind::kSigmoidCrossEntropy, {f, f, f}, {f}, Forward<ops::SigmoidCrossEntropy>(context));
  table->Add(OpKind::kSigmoidCrossEntropyGrad, {f, f, f}, {f}, Backward<ops::SigmoidCrossEntropyGrad>(context));
  table->Add(OpKind::kSigmoidCrossEntropyGrad, {f, f, f, f}, {f}, Backward<ops::SigmoidCrossEntropyGrad>(context));
}

}  // namespace ampd::cuda
