#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status InferReduceMean(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(RequireRank(OpKind::kReduceMean, call, 0, 1));
  outputs->push_back({DType::kF32, {}});
  return absl::OkStatus();
}

absl::Status InferReduceMeanGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kReduceMeanGrad, call, 0, {}));
  std::vector<int64_t> shape;
  AMPD_RETURN_IF_ERROR(RequireInts(OpKind::kReduceMeanGrad, call, "shape", 1, 1, &shape));
  outputs->push_back({DType::kF32, ToShape(shape)});
  return absl::OkStatus();
}

void ReduceMeanGradient(GradientContext& c) {
  ir::Attributes attributes{{"shape", ToInts(c.input_type(0).shape)}};
  c.AddInputGrad(0, c.Emit(OpKind::kReduceMeanGrad, {c.output_grad(0)}, attributes, "grad")[0]);
}

}  // namespace

std::vector<OpDef> ReduceMeanDefs() {
  return {{.kind = OpKind::kReduceMean,
           .precision = PrecisionClass::kDeny,
           .inputs = {Role::kData},
           .output_suffixes = {""},
           .infer = InferReduceMean,
           .gradient = ReduceMeanGradient},
          {.kind = OpKind::kReduceMeanGrad,
           .precision = PrecisionClass::kDeny,
           .inputs = {Role::kData},
           .output_suffixes = {""},
           .infer = InferReduceMeanGrad}};
}

}  // namespace ampd::ops
