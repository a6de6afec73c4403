#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;
using Ints = std::vector<int64_t>;

// Extents of `x` with its pads; `mode` says how far they may reach.
absl::Status PaddedShape(OpKind op, const OpCall& call, const Shape& x, Shape* padded) {
  const Ints pads = call.attributes.Ints("pads");
  const std::string mode = call.attributes.String("mode");
  const bool constant = mode.empty() || mode == "constant";
  if (!constant && mode != "reflect" && mode != "edge") {
    return BadNode(op, call, absl::StrCat("mode is \"", mode, "\", must be constant, reflect or edge"));
  }
  if (pads.size() != 2 * x.size()) {
    return BadNode(op, call, absl::StrCat("pads has ", pads.size(), " numbers, needs ", 2 * x.size()));
  }
  constexpr int64_t kMost = int64_t{1} << 48;
  for (size_t d = 0; d < x.size(); ++d) {
    const int64_t before = pads[d], after = pads[x.size() + d];
    const int64_t least = constant ? -x[d] : 0, most = mode == "reflect" ? x[d] - 1 : kMost;
    if (before < least || after < least || before > most || after > most || x[d] + before + after < 1) {
      return BadNode(op, call,
                     absl::StrCat("axis ", d, " of extent ", x[d], " is padded by ", before, " and ", after,
                                  constant ? "" : " in mode ", constant ? "" : mode));
    }
    padded->push_back(x[d] + before + after);
  }
  return absl::OkStatus();
}

// What is padded with a constant may be rounded on the way.
absl::Status PaddedDType(const OpCall& call, DType* dtype) {
  *dtype = call.inputs[0].dtype;
  if (!call.attributes.Has("dtype")) return absl::OkStatus();
  const std::string name = call.attributes.String("dtype"), mode = call.attributes.String("mode");
  const bool half = name == DTypeName(DType::kF16) || name == DTypeName(DType::kBF16);
  if (*dtype != DType::kF32 || !half || !(mode.empty() || mode == "constant")) {
    return BadNode(OpKind::kPad, call,
                   absl::StrCat("rounds ", DTypeName(*dtype), " to \"", name, "\"", mode.empty() ? "" : " in mode ",
                                mode, ", may f32 to f16 or bf16 in mode constant"));
  }
  *dtype = name == DTypeName(DType::kF16) ? DType::kF16 : DType::kBF16;
  return absl::OkStatus();
}

absl::Status InferPad(const OpCall& call, std::vector<TensorType>* outputs) {
  DType dtype;
  AMPD_RETURN_IF_ERROR(PaddedDType(call, &dtype));
  Shape shape;
  AMPD_RETURN_IF_ERROR(PaddedShape(OpKind::kPad, call, call.inputs[0].shape, &shape));
  outputs->push_back({dtype, shape});
  return absl::OkStatus();
}

absl::Status InferPadGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  Ints shape;
  AMPD_RETURN_IF_ERROR(RequireInts(OpKind::kPadGrad, call, "shape", call.inputs[0].shape.size(), 1, &shape));
  Shape padded;
  AMPD_RETURN_IF_ERROR(PaddedShape(OpKind::kPadGrad, call, ToShape(shape), &padded));
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kPadGrad, call, 0, padded));
  outputs->push_back({call.inputs[0].dtype, ToShape(shape)});
  return absl::OkStatus();
}

void PadGradient(GradientContext& c) {
  const ir::Attributes& given = c.node().attributes;
  // A pass makes such nodes of graphs that have their gradients.
  if (given.Has("dtype")) return c.RefuseInput(0);
  const std::string mode = given.String("mode");
  ir::Attributes attributes{{"pads", given.Ints("pads")}, {"mode", mode}};
  if (mode.empty() || mode == "constant") {
    // Cutting off is padding by less than nothing.
    Ints pads = given.Ints("pads");
    for (int64_t& pad : pads) pad = -pad;
    c.AddInputGrad(0, c.Emit(OpKind::kPad, {c.output_grad(0)}, {{"pads", pads}}, "grad")[0]);
    return;
  }
  attributes.Set("shape", ToInts(c.input_type(0).shape));
  c.AddInputGrad(0, c.Emit(OpKind::kPadGrad, {c.output_grad(0)}, attributes, "grad")[0]);
}

double NoFlops(const OpCall&, const std::vector<TensorType>&) { return 0; }

}  // namespace

std::vector<OpDef> PadDefs() {
  return {{.kind = OpKind::kPad,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kNumber},
           .output_suffixes = {""},
           .infer = InferPad,
           .gradient = PadGradient,
           .flops = NoFlops},
          {.kind = OpKind::kPadGrad,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData},
           .output_suffixes = {""},
           .infer = InferPadGrad}};
}

}  // namespace ampd::ops
