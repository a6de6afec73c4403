#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

struct Extents {
  int64_t rows, inner_a, inner_b, columns;
};

Extents ExtentsOf(const OpCall& call) {
  const Shape& a = call.inputs[0].shape;
  const Shape& b = call.inputs[1].shape;
  const bool ta = call.attributes.Bool("transpose_a");
  const bool tb = call.attributes.Bool("transpose_b");
  return {a[ta ? 1 : 0], a[ta ? 0 : 1], b[tb ? 1 : 0], b[tb ? 0 : 1]};
}

absl::Status InferMatmul(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(RequireRank(OpKind::kMatmul, call, 0, 2));
  AMPD_RETURN_IF_ERROR(RequireRank(OpKind::kMatmul, call, 1, 2));
  const Extents e = ExtentsOf(call);
  if (e.inner_a != e.inner_b) {
    return BadNode(OpKind::kMatmul, call,
                   absl::StrCat("inner extents differ: ", ShapeString(call.inputs[0].shape), " and ",
                                ShapeString(call.inputs[1].shape), " (", e.inner_a, " and ", e.inner_b, ")"));
  }
  outputs->push_back({call.inputs[0].dtype, {e.rows, e.columns}});
  return absl::OkStatus();
}

// y = op(a) op(b). With G = dy: d op(a) = G op(b)^T and d op(b) = op(a)^T G, transposed again where the operand is.
void MatmulGradient(GradientContext& c) {
  const bool ta = c.node().attributes.Bool("transpose_a");
  const bool tb = c.node().attributes.Bool("transpose_b");
  const ir::ValueId a = c.input(0), b = c.input(1), g = c.output_grad(0);
  const auto emit = [&](ir::ValueId left, ir::ValueId right, bool tl, bool tr, const char* suffix) {
    ir::Attributes attributes{{"transpose_a", int64_t{tl}}, {"transpose_b", int64_t{tr}}};
    return c.Emit(OpKind::kMatmul, {left, right}, attributes, suffix)[0];
  };
  if (c.needs_grad(1)) c.AddInputGrad(1, tb ? emit(g, a, true, ta, "grad_b") : emit(a, g, !ta, false, "grad_b"));
  if (c.needs_grad(0)) c.AddInputGrad(0, ta ? emit(b, g, tb, true, "grad_a") : emit(g, b, false, !tb, "grad_a"));
}

double MatmulFlops(const OpCall& call, const std::vector<TensorType>&) {
  const Extents e = ExtentsOf(call);
  return 2.0 * e.rows * e.inner_a * e.columns;
}

}  // namespace

std::vector<OpDef> MatmulDefs() {
  return {{.kind = OpKind::kMatmul,
           .precision = PrecisionClass::kAllow,
           .inputs = {Role::kData, Role::kData},
           .output_suffixes = {""},
           .infer = InferMatmul,
           .gradient = MatmulGradient,
           .flops = MatmulFlops,
           .bilinear = true}};
}

}  // namespace ampd::ops
