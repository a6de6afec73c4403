// Losses of a prediction against a target, averaged over all axes but the first.
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/row_kernel.h"
#include "engine/ops/loss_elements.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

template <ops::LossFunction kElement>
double ElementAt(const KernelArgs& args, size_t prediction, int64_t i, int64_t last, double number) {
  const bool weighted = args.inputs.size() > prediction + 2;
  const ops::LossElement e{static_cast<double>(args.inputs[prediction].as<float>()[i]),
                           static_cast<double>(args.inputs[prediction + 1].as<float>()[i]), number,
                           weighted ? static_cast<double>(args.inputs[prediction + 2].as<float>()[i % last]) : 1.0};
  return kElement(e);
}

double NumberOf(const NodeDesc& desc) { return desc.attributes.Double("beta", desc.attributes.Double("margin", 1)); }

// Samples of `features` elements as rows.
Shape Rows(const Shape& shape) { return {shape[0], NumElements(shape) / shape[0]}; }

template <ops::LossFunction kElement>
std::unique_ptr<runtime::Kernel> Forward(const NodeDesc& desc) {
  const Shape rows = Rows(desc.inputs[0].shape);
  return MakeRowKernel(desc, rows, 4,
                       [features = rows[1], last = desc.inputs[0].shape.back(), number = NumberOf(desc)](
                           const KernelArgs& args, int64_t row) {
                         double sum = 0;
                         for (int64_t i = row * features; i < (row + 1) * features; ++i) {
                           sum += ElementAt<kElement>(args, 0, i, last, number);
                         }
                         args.outputs[0].as<float>()[row] = static_cast<float>(sum / static_cast<double>(features));
                       });
}

template <ops::LossFunction kElement>
std::unique_ptr<runtime::Kernel> Backward(const NodeDesc& desc) {
  const Shape rows = Rows(desc.inputs[1].shape);
  return MakeRowKernel(
      desc, rows, 4,
      [features = rows[1], last = desc.inputs[1].shape.back(), number = NumberOf(desc)](const KernelArgs& args,
                                                                                        int64_t row) {
        const double share = static_cast<double>(args.inputs[0].as<float>()[row]) / static_cast<double>(features);
        for (int64_t i = row * features; i < (row + 1) * features; ++i) {
          args.outputs[0].as<float>()[i] = static_cast<float>(share * ElementAt<kElement>(args, 1, i, last, number));
        }
      });
}

}  // namespace

void RegisterRegressionLosses(runtime::KernelTable* table) {
  constexpr DType f = DType::kF32;
  table->Add(ir::OpKind::kSquaredError, {f, f}, {f}, Forward<ops::SquaredError>);
  table->Add(ir::OpKind::kSquaredErrorGrad, {f, f, f}, {f}, Backward<ops::SquaredErrorGrad>);
  table->Add(ir::OpKind::kL1Loss, {f, f}, {f}, Forward<ops::L1Loss>);
  table->Add(ir::OpKind::kL1LossGrad, {f, f, f}, {f}, Backward<ops::L1LossGrad>);
  table->Add(ir::OpKind::kSmoothL1Loss, {f, f}, {f}, Forward<ops::SmoothL1Loss>);
  table->Add(ir::OpKind::kSmoothL1LossGrad, {f, f, f}, {f}, Backward<ops::SmoothL1LossGrad>);
  table->Add(ir::OpKind::kHingeLoss, {f, f}, {f}, Forward<ops::HingeLoss>);
  table->Add(ir::OpKind::kHingeLossGrad, {f, f, f}, {f}, Backward<ops::HingeLossGrad>);
  table->Add(ir::OpKind::kSigmoidCrossEntropy, {f, f}, {f}, Forward<ops::SigmoidCrossEntropy>);
  table->Add(ir::OpKind::kSigmoidCrossEntropy, {f, f, f}, {f}, Forward<ops::SigmoidCrossEntropy>);
  table->Add(ir::OpKind::kSigmoidCrossEntropyGrad, {f, f, f}, {f}, Backward<ops::SigmoidCrossEntropyGrad>);
  table->Add(ir::OpKind::kSigmoidCrossEntropyGrad, {f, f, f, f}, {f}, Backward<ops::SigmoidCrossEntropyGrad>);
}

}  // namespace ampd::cpu
