#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status InferEmbedding(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(RequireRank(OpKind::kEmbedding, call, 0, 2));
  if (!IsFloat(call.inputs[0].dtype)) return BadNode(OpKind::kEmbedding, call, "the table must be of floats");
  Shape shape = call.inputs[1].shape;
  shape.push_back(call.inputs[0].shape[1]);
  outputs->push_back({call.inputs[0].dtype, shape});
  return absl::OkStatus();
}

absl::Status InferEmbeddingGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  constexpr OpKind kOp = OpKind::kEmbeddingGrad;
  const int64_t rows = call.attributes.Int("rows");
  if (rows < 1) return BadNode(kOp, call, absl::StrCat("rows is ", rows, ", must be at least 1"));
  if (call.inputs[0].shape.empty()) return BadNode(kOp, call, "the gradient has no axes");
  Shape shape = call.inputs[1].shape;
  shape.push_back(call.inputs[0].shape.back());
  AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, 0, shape));
  const std::string name = call.attributes.String("dtype");
  for (DType dtype : {DType::kF32, call.inputs[0].dtype}) {
    if (absl::string_view(name) != DTypeName(dtype)) continue;
    outputs->push_back({dtype, {rows, shape.back()}});
    return absl::OkStatus();
  }
  return BadNode(kOp, call, absl::StrCat("dtype is \"", name, "\", needs f32 or the gradient's"));
}

void EmbeddingGradient(GradientContext& c) {
  const ir::Attributes attributes{{"rows", c.input_type(0).shape[0]},
                                  {"dtype", std::string(DTypeName(SumDType(c, 0)))}};
  c.AddInputGrad(0, c.Emit(OpKind::kEmbeddingGrad, {c.output_grad(0), c.input(1)}, attributes, "grad")[0]);
}

absl::Status InferOneHot(const OpCall& call, std::vector<TensorType>* outputs) {
  const int64_t depth = call.attributes.Int("depth");
  if (depth < 1) return BadNode(OpKind::kOneHot, call, absl::StrCat("depth is ", depth, ", must be at least 1"));
  Shape shape = call.inputs[0].shape;
  size_t axis;
  AMPD_RETURN_IF_ERROR(RequireAxis(OpKind::kOneHot, call, "axis", -1, shape.size() + 1, &axis));
  shape.insert(shape.begin() + static_cast<int64_t>(axis), depth);
  outputs->push_back({DType::kF32, shape});
  return absl::OkStatus();
}

double NoFlops(const OpCall&, const std::vector<TensorType>&) { return 0; }

double GradientFlops(const OpCall& call, const std::vector<TensorType>&) {
  return static_cast<double>(NumElements(call.inputs[0].shape));
}

}  // namespace

std::vector<OpDef> EmbeddingDefs() {
  // The table is a number, not data: TF32 rounds what is multiplied, and a look-up multiplies nothing.
  return {{.kind = OpKind::kEmbedding,
           .precision = PrecisionClass::kAllow,
           .inputs = {Role::kNumber, Role::kIndex},
           .output_suffixes = {""},
           .infer = InferEmbedding,
           .gradient = EmbeddingGradient,
           .flops = NoFlops},
          {.kind = OpKind::kEmbeddingGrad,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData, Role::kIndex},
           .output_suffixes = {""},
           .infer = InferEmbeddingGrad,
           .flops = GradientFlops},
          {.kind = OpKind::kOneHot,
           .precision = PrecisionClass::kFixed,
           .inputs = {Role::kIndex},
           .output_suffixes = {""},
           .infer = InferOneHot,
           .flops = NoFlops}};
}

}  // namespace ampd::ops
