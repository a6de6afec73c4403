// Losses of a prediction against a target, averaged over all axes but the first.
#include <cmath>

#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/row_kernel.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

// One element: its prediction, its target, the op's number (beta or margin), the weight of a positive target.
struct Element {
  double p, t, number, positive;
};

double Squared(const Element& e) { return (e.p - e.t) * (e.p - e.t); }
double SquaredGrad(const Element& e) { return 2 * (e.p - e.t); }

double Absolute(const Element& e) { return std::fabs(e.p - e.t); }
// 0 at 0; NaN stays NaN.
double AbsoluteGrad(const Element& e) {
  const double d = e.p - e.t;
  return d > 0 ? 1 : d < 0 ? -1 : d;
}

double SmoothAbsolute(const Element& e) {
  const double d = std::fabs(e.p - e.t);
  return d < e.number ? 0.5 * d * d / e.number : d - 0.5 * e.number;
}
double SmoothAbsoluteGrad(const Element& e) {
  const double d = e.p - e.t;
  return std::fabs(d) < e.number ? d / e.number : AbsoluteGrad(e);
}

double Side(const Element& e) { return e.t > 0 ? 1 : -1; }
double Hinge(const Element& e) {
  const double short_of = e.number - Side(e) * e.p;
  return short_of <= 0 ? 0 : short_of;
}
double HingeGrad(const Element& e) { return e.number - Side(e) * e.p <= 0 ? 0 : -Side(e); }

// (1 - t) z + (1 + (positive - 1) t) log(1 + e^-z), with e of a number that is never positive.
double SigmoidCrossEntropy(const Element& e) {
  const double softplus = std::log1p(std::exp(-std::fabs(e.p))) + (e.p < 0 ? -e.p : 0.0);
  return (1 - e.t) * e.p + (1 + (e.positive - 1) * e.t) * softplus;
}
double SigmoidCrossEntropyGrad(const Element& e) {
  const double z = std::exp(-std::fabs(e.p));
  const double negative = (e.p >= 0 ? z : 1.0) / (1 + z);  // 1 - sigmoid(p)
  return (1 - e.t) - (1 + (e.positive - 1) * e.t) * negative;
}

template <double (*kElement)(const Element&)>
double ElementAt(const KernelArgs& args, size_t prediction, int64_t i, int64_t last, double number) {
  const bool weighted = args.inputs.size() > prediction + 2;
  const Element e{static_cast<double>(args.inputs[prediction].as<float>()[i]),
                  static_cast<double>(args.inputs[prediction + 1].as<float>()[i]), number,
                  weighted ? static_cast<double>(args.inputs[prediction + 2].as<float>()[i % last]) : 1.0};
  return kElement(e);
}

double NumberOf(const NodeDesc& desc) { return desc.attributes.Double("beta", desc.attributes.Double("margin", 1)); }

// Samples of `features` elements as rows.
Shape Rows(const Shape& shape) { return {shape[0], NumElements(shape) / shape[0]}; }

template <double (*kElement)(const Element&)>
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

template <double (*kElement)(const Element&)>
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
  table->Add(ir::OpKind::kSquaredError, {f, f}, {f}, Forward<Squared>);
  table->Add(ir::OpKind::kSquaredErrorGrad, {f, f, f}, {f}, Backward<SquaredGrad>);
  table->Add(ir::OpKind::kL1Loss, {f, f}, {f}, Forward<Absolute>);
  table->Add(ir::OpKind::kL1LossGrad, {f, f, f}, {f}, Backward<AbsoluteGrad>);
  table->Add(ir::OpKind::kSmoothL1Loss, {f, f}, {f}, Forward<SmoothAbsolute>);
  table->Add(ir::OpKind::kSmoothL1LossGrad, {f, f, f}, {f}, Backward<SmoothAbsoluteGrad>);
  table->Add(ir::OpKind::kHingeLoss, {f, f}, {f}, Forward<Hinge>);
  table->Add(ir::OpKind::kHingeLossGrad, {f, f, f}, {f}, Backward<HingeGrad>);
  table->Add(ir::OpKind::kSigmoidCrossEntropy, {f, f}, {f}, Forward<SigmoidCrossEntropy>);
  table->Add(ir::OpKind::kSigmoidCrossEntropy, {f, f, f}, {f}, Forward<SigmoidCrossEntropy>);
  table->Add(ir::OpKind::kSigmoidCrossEntropyGrad, {f, f, f}, {f}, Backward<SigmoidCrossEntropyGrad>);
  table->Add(ir::OpKind::kSigmoidCrossEntropyGrad, {f, f, f, f}, {f}, Backward<SigmoidCrossEntropyGrad>);
}

}  // namespace ampd::cpu
