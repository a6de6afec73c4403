#include "engine/core/status.h"
#include "engine/ops/conv_rules.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {

using ir::OpKind;
using ir::TensorType;

absl::Status ConvOutput(OpKind op, const OpCall& call, const Shape& x, const Shape& w, Shape* y) {
  Window window;
  int64_t groups = 1;
  AMPD_RETURN_IF_ERROR(ReadWindow(op, call, &window));
  AMPD_RETURN_IF_ERROR(ReadGroups(op, call, &groups));
  if (x.size() != 4 || w.size() != 4) {
    return BadNode(op, call,
                   absl::StrCat("needs an image [n, h, w, c] and filters [k, r, s, c], has ", ShapeString(x), " and ",
                                ShapeString(w)));
  }
  if (x[3] % groups != 0 || w[0] % groups != 0) {
    return BadNode(op, call,
                   absl::StrCat(x[3], " input and ", w[0], " output channels are not whole ", groups, " groups"));
  }
  if (x[3] / groups != w[3]) {
    const std::string each = groups == 1 ? "" : absl::StrCat(" in each of ", groups, " groups");
    return BadNode(op, call, absl::StrCat("input has ", x[3] / groups, " channels", each, ", filters take ", w[3]));
  }
  int64_t p = 0, q = 0;
  AMPD_RETURN_IF_ERROR(WindowOutput(op, call, x, {w[1], w[2]}, window, &p, &q));
  *y = {x[0], p, q, w[0]};
  return absl::OkStatus();
}

double ConvFlops(const Shape& y, const Shape& w) {
  return 2.0 * static_cast<double>(NumElements(y)) * static_cast<double>(w[1] * w[2] * w[3]);
}

namespace {

absl::Status InferConv2d(const OpCall& call, std::vector<TensorType>* outputs) {
  Shape y;
  AMPD_RETURN_IF_ERROR(ConvOutput(OpKind::kConv2d, call, call.inputs[0].shape, call.inputs[1].shape, &y));
  outputs->push_back({call.inputs[0].dtype, y});
  return absl::OkStatus();
}

absl::Status InferGradInput(const OpCall& call, std::vector<TensorType>* outputs) {
  const Shape x = ToShape(call.attributes.Ints("input_shape"));
  Shape y;
  AMPD_RETURN_IF_ERROR(ConvOutput(OpKind::kConv2dGradInput, call, x, call.inputs[1].shape, &y));
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kConv2dGradInput, call, 0, y));
  outputs->push_back({call.inputs[0].dtype, x});
  return absl::OkStatus();
}

absl::Status InferGradFilter(const OpCall& call, std::vector<TensorType>* outputs) {
  const Shape w = ToShape(call.attributes.Ints("filter_shape"));
  Shape y;
  AMPD_RETURN_IF_ERROR(ConvOutput(OpKind::kConv2dGradFilter, call, call.inputs[1].shape, w, &y));
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kConv2dGradFilter, call, 0, y));
  outputs->push_back({call.inputs[0].dtype, w});
  return absl::OkStatus();
}

void Conv2dGradient(GradientContext& c) {
  const ir::ValueId g = c.output_grad(0);
  if (c.needs_grad(1)) {
    ir::Attributes attributes = c.node().attributes;
    attributes.Set("filter_shape", ToInts(c.input_type(1).shape));
    c.AddInputGrad(1, c.Emit(OpKind::kConv2dGradFilter, {g, c.input(0)}, attributes, "grad_filter")[0]);
  }
  if (c.needs_grad(0)) {
    ir::Attributes attributes = c.node().attributes;
    attributes.Set("input_shape", ToInts(c.input_type(0).shape));
    c.AddInputGrad(0, c.Emit(OpKind::kConv2dGradInput, {g, c.input(1)}, attributes, "grad_input")[0]);
  }
}

double Conv2dFlops(const OpCall& call, const std::vector<TensorType>& outputs) {
  return ConvFlops(outputs[0].shape, call.inputs[1].shape);
}
double GradInputFlops(const OpCall& call, const std::vector<TensorType>&) {
  return ConvFlops(call.inputs[0].shape, call.inputs[1].shape);
}
double GradFilterFlops(const OpCall& call, const std::vector<TensorType>& outputs) {
  return ConvFlops(call.inputs[0].shape, outputs[0].shape);
}

}  // namespace

std::vector<OpDef> Conv2dDefs() {
  return {{.kind = OpKind::kConv2d,
           .precision = PrecisionClass::kAllow,
           .inputs = {Role::kData, Role::kData},
           .output_suffixes = {""},
           .infer = InferConv2d,
           .gradient = Conv2dGradient,
           .flops = Conv2dFlops,
           .bilinear = true},
          {.kind = OpKind::kConv2dGradInput,
           .precision = PrecisionClass::kAllow,
           .inputs = {Role::kData, Role::kData},
           .output_suffixes = {""},
           .infer = InferGradInput,
           .flops = GradInputFlops,
           .bilinear = true},
          {.kind = OpKind::kConv2dGradFilter,
           .precision = PrecisionClass::kAllow,
           .inputs = {Role::kData, Role::kData},
           .output_suffixes = {""},
           .infer = InferGradFilter,
           .flops = GradFilterFlops,
           .bilinear = true}};
}

}  // namespace ampd::ops
