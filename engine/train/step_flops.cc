#include "engine/train/step_flops.h"

namespace ampd::train {
namespace {

// Of `cost`, the share that is the model's products.
double ShareOfProducts(ir::OpKind op) {
  switch (op) {
    case ir::OpKind::kMatmul:
    case ir::OpKind::kConv2d:
    case ir::OpKind::kConv2dGradInput:
    case ir::OpKind::kConv2dGradFilter:
    case ir::OpKind::kConvTranspose2d:
    case ir::OpKind::kAttention:
    case ir::OpKind::kSelfAttention:
    case ir::OpKind::kLstm:
    case ir::OpKind::kLstmGrad:
    case ir::OpKind::kGru:
    case ir::OpKind::kGruGrad:
      return 1;
    case ir::OpKind::kAttentionGrad:
    case ir::OpKind::kSelfAttentionGrad:
      // The fifth makes the probabilities again.
      return 0.8;
    default:
      return 0;
  }
}

double ProductFlops(const runtime::PlanStep& step) {
  if (step.op != ir::OpKind::kRegion) return ShareOfProducts(step.op) * step.cost.flops;
  // Without one for each element and step behind the product.
  const auto behind = static_cast<double>(step.fused.size() - 1);
  const auto elements = static_cast<double>(NumElements(step.outputs.front().type.shape));
  return ShareOfProducts(step.fused.front().op) * (step.cost.flops - behind * elements);
}

}  // namespace

absl::optional<double> StepFlops(const PlannedModel& planned, const v1::TrainSpec& train) {
  double flops = 0;
  for (const PlannedPhase& phase : planned.phases) {
    if (phase.plans.size() != 1) return absl::nullopt;
    double micro_batch = 0;
    for (const runtime::PlanStep& step : phase.plans[0].steps) micro_batch += ProductFlops(step);
    flops += micro_batch / static_cast<double>(phase.every);
  }
  return flops * static_cast<double>(train.batch_size()) / static_cast<double>(train.micro_batch_size());
}

}  // namespace ampd::train
