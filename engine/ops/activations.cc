// Activation functions. Their gradients are ops of their own: one rounding, one pass.
#include <cmath>

#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

// Attributes that are present must be finite numbers.
template <OpKind kOp>
absl::Status InferActivation(const OpCall& call, std::vector<TensorType>* outputs) {
  for (const char* name : {"alpha", "beta"}) {
    const double value = call.attributes.Double(name);
    if (!std::isfinite(value)) return BadNode(kOp, call, absl::StrCat(name, " is ", value, ", must be finite"));
  }
  for (size_t i = 1; i < call.inputs.size(); ++i) {
    AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, static_cast<int>(i), call.inputs[0].shape));
  }
  return SameAsFirst(call, outputs);
}

template <OpKind kOp>
absl::Status InferGelu(const OpCall& call, std::vector<TensorType>* outputs) {
  const std::string form = call.attributes.String("approximate");
  if (!form.empty() && form != "none" && form != "tanh") {
    return BadNode(kOp, call, absl::StrCat("approximate is \"", form, "\", must be none or tanh"));
  }
  return InferActivation<kOp>(call, outputs);
}

template <OpKind kOp>
absl::Status InferClip(const OpCall& call, std::vector<TensorType>* outputs) {
  for (const char* name : {"min", "max"}) {
    if (std::isnan(call.attributes.Double(name))) return BadNode(kOp, call, absl::StrCat(name, " is not a number"));
  }
  return InferActivation<kOp>(call, outputs);
}

template <OpKind kGrad>
void FromInput(GradientContext& c) {
  c.AddInputGrad(0, c.Emit(kGrad, {c.output_grad(0), c.input(0)}, c.node().attributes, "grad")[0]);
}

template <OpKind kGrad>
void FromOutput(GradientContext& c) {
  c.AddInputGrad(0, c.Emit(kGrad, {c.output_grad(0), c.output(0)}, c.node().attributes, "grad")[0]);
}

using Infer = absl::Status (*)(const OpCall&, std::vector<TensorType>*);

// The function and its gradient op, a function of the gradient and the input or the output.
void AddPair(std::vector<OpDef>* defs, OpKind op, OpKind grad, void (*gradient)(GradientContext&), Infer infer,
             Infer infer_grad, Role role = Role::kData) {
  defs->push_back({.kind = op,
                   .precision = PrecisionClass::kInfer,
                   .inputs = {role},
                   .output_suffixes = {""},
                   .infer = infer,
                   .gradient = gradient,
                   .elementwise = true});
  defs->push_back({.kind = grad,
                   .precision = PrecisionClass::kInfer,
                   .inputs = {Role::kData, Role::kData},
                   .output_suffixes = {""},
                   .infer = infer_grad,
                   .elementwise = true});
}

template <OpKind kOp, OpKind kGrad>
void AddActivation(std::vector<OpDef>* defs, void (*gradient)(GradientContext&)) {
  AddPair(defs, kOp, kGrad, gradient, InferActivation<kOp>, InferActivation<kGrad>);
}

}  // namespace

std::vector<OpDef> ActivationsDefs() {
  std::vector<OpDef> defs;
  AddActivation<OpKind::kRelu, OpKind::kReluGrad>(&defs, FromOutput<OpKind::kReluGrad>);
  AddActivation<OpKind::kLeakyRelu, OpKind::kLeakyReluGrad>(&defs, FromInput<OpKind::kLeakyReluGrad>);
  AddActivation<OpKind::kElu, OpKind::kEluGrad>(&defs, FromInput<OpKind::kEluGrad>);
  AddPair(&defs, OpKind::kGelu, OpKind::kGeluGrad, FromInput<OpKind::kGeluGrad>, InferGelu<OpKind::kGelu>,
          InferGelu<OpKind::kGeluGrad>);
  AddActivation<OpKind::kSilu, OpKind::kSiluGrad>(&defs, FromInput<OpKind::kSiluGrad>);
  AddActivation<OpKind::kSigmoid, OpKind::kSigmoidGrad>(&defs, FromOutput<OpKind::kSigmoidGrad>);
  AddActivation<OpKind::kTanh, OpKind::kTanhGrad>(&defs, FromOutput<OpKind::kTanhGrad>);
  AddActivation<OpKind::kSoftplus, OpKind::kSoftplusGrad>(&defs, FromInput<OpKind::kSoftplusGrad>);
  AddActivation<OpKind::kHardSigmoid, OpKind::kHardSigmoidGrad>(&defs, FromInput<OpKind::kHardSigmoidGrad>);
  AddPair(&defs, OpKind::kClip, OpKind::kClipGrad, FromInput<OpKind::kClipGrad>, InferClip<OpKind::kClip>,
          InferClip<OpKind::kClipGrad>, Role::kNumber);
  return defs;
}

}  // namespace ampd::ops
