#include "engine/core/status.h"
#include "engine/ops/conv_rules.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

constexpr OpKind kOp = OpKind::kConvTranspose2d;

absl::Status ReadOutputPadding(const OpCall& call, const Window& window, std::vector<int64_t>* padding) {
  *padding = {0, 0};
  if (!call.attributes.Has("output_padding")) return absl::OkStatus();
  AMPD_RETURN_IF_ERROR(RequireInts(kOp, call, "output_padding", 2, 0, padding));
  for (int axis = 0; axis < 2; ++axis) {
    if ((*padding)[axis] < window.strides[axis]) continue;
    return BadNode(kOp, call,
                   absl::StrCat("output_padding is ", ShapeString(*padding), ", each must be below the stride ",
                                ShapeString(window.strides)));
  }
  return absl::OkStatus();
}

// The image whose convolution by the same filters and window has the shape of `x`.
absl::Status InferConvTranspose2d(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(RequireRank(kOp, call, 0, 4));
  AMPD_RETURN_IF_ERROR(RequireRank(kOp, call, 1, 4));
  const Shape& x = call.inputs[0].shape;
  const Shape& w = call.inputs[1].shape;
  Window window;
  int64_t groups = 1;
  std::vector<int64_t> output_padding;
  AMPD_RETURN_IF_ERROR(ReadWindow(kOp, call, &window));
  AMPD_RETURN_IF_ERROR(ReadGroups(kOp, call, &groups));
  AMPD_RETURN_IF_ERROR(ReadOutputPadding(call, window, &output_padding));
  if (x[3] != w[0]) return BadNode(kOp, call, absl::StrCat("input has ", x[3], " channels, filters take ", w[0]));
  if (groups > (int64_t{1} << 40) || w[3] > (int64_t{1} << 20)) {
    return BadNode(kOp, call, absl::StrCat(groups, " groups of ", w[3], " channels are out of range"));
  }
  Shape y = {x[0], 0, 0, w[3] * groups};
  for (int axis = 0; axis < 2; ++axis) {
    const int64_t size = w[axis + 1];
    if (x[axis + 1] < 1 || x[axis + 1] > (int64_t{1} << 30) || size < 1 || size > (int64_t{1} << 30)) {
      return BadNode(kOp, call,
                     absl::StrCat("image ", ShapeString(x), " or filters ", ShapeString(w), " out of range"));
    }
    y[axis + 1] = (x[axis + 1] - 1) * window.strides[axis] - window.pads[axis] - window.pads[axis + 2] +
                  (size - 1) * window.dilations[axis] + 1 + output_padding[axis];
  }
  Shape convolved;
  AMPD_RETURN_IF_ERROR(ConvOutput(kOp, call, y, w, &convolved));
  AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, 0, convolved));
  outputs->push_back({call.inputs[0].dtype, y});
  return absl::OkStatus();
}

// Being a convolution's gradient by its input, its own gradients are that convolution and its gradient by the filters.
void ConvTranspose2dGradient(GradientContext& c) {
  const ir::ValueId g = c.output_grad(0);
  ir::Attributes attributes;
  for (const char* name : {"strides", "pads", "dilations", "groups"}) {
    const auto& items = c.node().attributes.items();
    if (items.count(name) > 0) attributes.Set(name, items.at(name));
  }
  if (c.needs_grad(1)) {
    ir::Attributes filter = attributes;
    filter.Set("filter_shape", ToInts(c.input_type(1).shape));
    c.AddInputGrad(1, c.Emit(OpKind::kConv2dGradFilter, {c.input(0), g}, filter, "grad_filter")[0]);
  }
  if (c.needs_grad(0)) c.AddInputGrad(0, c.Emit(OpKind::kConv2d, {g, c.input(1)}, attributes, "grad_input")[0]);
}

double Flops(const OpCall& call, const std::vector<TensorType>&) {
  return ConvFlops(call.inputs[0].shape, call.inputs[1].shape);
}

}  // namespace

std::vector<OpDef> ConvTranspose2dDefs() {
  return {{.kind = kOp,
           .precision = PrecisionClass::kAllow,
           .inputs = {Role::kData, Role::kData},
           .output_suffixes = {""},
           .infer = InferConvTranspose2d,
           .gradient = ConvTranspose2dGradient,
           .flops = Flops,
           .bilinear = true}};
}

}  // namespace ampd::ops
