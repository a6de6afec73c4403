#include <algorithm>

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
  const size_t ta = call.attributes.Bool("transpose_a") ? 1 : 0;
  const size_t tb = call.attributes.Bool("transpose_b") ? 1 : 0;
  return {a[a.size() - 2 + ta], a[a.size() - 1 - ta], b[b.size() - 2 + tb], b[b.size() - 1 - tb]};
}

// The batch axes of both, from the right: equal, or one of them 1 or absent. False where they do not fit.
bool BroadcastBatch(const Shape& a, const Shape& b, Shape* batch) {
  const size_t rank = std::max(a.size(), b.size()) - 2;
  batch->assign(rank, 1);
  for (size_t i = 0; i < rank; ++i) {
    const int64_t x = i + 2 < a.size() ? a[a.size() - 3 - i] : 1;
    const int64_t y = i + 2 < b.size() ? b[b.size() - 3 - i] : 1;
    if (x != y && x != 1 && y != 1) return false;
    (*batch)[rank - 1 - i] = x == 1 ? y : x;
  }
  return true;
}

// With scales the result is what 8-bit codes stand for, in attribute "dtype"; without, sums of 16-bit operands may stay
// in f32.
absl::Status ResultDType(const OpCall& call, DType* dtype) {
  *dtype = call.inputs[0].dtype;
  if (call.inputs.size() == 2) {
    const std::string name = call.attributes.String("dtype");
    if (name.empty()) return absl::OkStatus();
    if (IsHalf(*dtype) && absl::string_view(name) == DTypeName(DType::kF32)) {
      return *dtype = DType::kF32, absl::OkStatus();
    }
    return BadNode(OpKind::kMatmul, call,
                   absl::StrCat("dtype is \"", name, "\", needs none or, of 16-bit operands, f32"));
  }
  if (call.inputs.size() != 4) return BadNode(OpKind::kMatmul, call, "has one scale, needs two or none");
  for (int i : {2, 3}) AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kMatmul, call, i, {}));
  const std::string name = call.attributes.String("dtype");
  for (DType d : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (absl::string_view(name) == DTypeName(d)) return *dtype = d, absl::OkStatus();
  }
  return BadNode(OpKind::kMatmul, call, absl::StrCat("dtype is \"", name, "\", needs f32, f16 or bf16"));
}

absl::Status InferMatmul(const OpCall& call, std::vector<TensorType>* outputs) {
  const Shape& a = call.inputs[0].shape;
  const Shape& b = call.inputs[1].shape;
  for (int i : {0, 1}) {
    if (call.inputs[i].shape.size() >= 2) continue;
    return BadNode(
        OpKind::kMatmul, call,
        absl::StrCat("input ", i, " has shape ", ShapeString(call.inputs[i].shape), ", needs 2 axes or more"));
  }
  const Extents e = ExtentsOf(call);
  if (e.inner_a != e.inner_b) {
    return BadNode(OpKind::kMatmul, call,
                   absl::StrCat("inner extents differ: ", ShapeString(a), " and ", ShapeString(b), " (", e.inner_a,
                                " and ", e.inner_b, ")"));
  }
  Shape y;
  if (!BroadcastBatch(a, b, &y)) {
    return BadNode(OpKind::kMatmul, call,
                   absl::StrCat("batch axes of ", ShapeString(a), " and ", ShapeString(b), " do not broadcast"));
  }
  y.push_back(e.rows);
  y.push_back(e.columns);
  DType dtype;
  AMPD_RETURN_IF_ERROR(ResultDType(call, &dtype));
  outputs->push_back({dtype, y});
  return absl::OkStatus();
}

Shape Flat(const Shape& s) { return {NumElements(s) / s.back(), s.back()}; }

// y = op(a) op(b). With G = dy: d op(a) = G op(b)^T and d op(b) = op(a)^T G, transposed again where the operand is.
class ProductGradient {
 public:
  explicit ProductGradient(GradientContext& c)
      : c_(c), ta_(c.node().attributes.Bool("transpose_a")), tb_(c.node().attributes.Bool("transpose_b")) {
    a_ = c.input(0), b_ = c.input(1), g_ = c.output_grad(0);
  }

  void Add() {
    if (c_.input_type(1).shape.size() == 2 && c_.input_type(0).shape.size() > 2 && !ta_) return AddFlat();
    if (c_.needs_grad(1)) AddSummed(1, ByB(a_, g_));
    if (c_.needs_grad(0)) AddSummed(0, ByA(b_, g_));
  }

 private:
  ir::ValueId ByB(ir::ValueId a, ir::ValueId g) {
    return tb_ ? Product(g, a, true, ta_, "grad_b") : Product(a, g, !ta_, false, "grad_b");
  }
  ir::ValueId ByA(ir::ValueId b, ir::ValueId g) {
    return ta_ ? Product(b, g, tb_, true, "grad_a") : Product(g, b, false, !tb_, "grad_a");
  }

  // One matrix for the whole batch: its gradient is one product over all rows.
  void AddFlat() {
    const Shape shape = c_.input_type(0).shape;
    const ir::ValueId g = Reshape(g_, Flat(c_.graph().type(g_).shape), "grad_rows");
    if (c_.needs_grad(1)) c_.AddInputGrad(1, ByB(Reshape(a_, Flat(shape), "rows"), g));
    if (c_.needs_grad(0)) c_.AddInputGrad(0, Reshape(ByA(b_, g), shape, "grad_a_shape"));
  }

  ir::ValueId Product(ir::ValueId left, ir::ValueId right, bool tl, bool tr, const char* suffix) {
    ir::Attributes attributes{{"transpose_a", int64_t{tl}}, {"transpose_b", int64_t{tr}}};
    return c_.Emit(OpKind::kMatmul, {left, right}, attributes, suffix)[0];
  }
  ir::ValueId Reshape(ir::ValueId v, const Shape& shape, const char* suffix) {
    return c_.Emit(OpKind::kReshape, {v}, {{"shape", ToInts(shape)}}, suffix)[0];
  }
  // Over the batch axes along which the operand was broadcast.
  void AddSummed(int input, ir::ValueId gradient) {
    c_.AddInputGrad(input, SumToInput(c_, gradient, input, input == 0 ? "grad_a_sum" : "grad_b_sum"));
  }

  GradientContext& c_;
  const bool ta_, tb_;
  ir::ValueId a_, b_, g_;
};

void MatmulGradient(GradientContext& c) { ProductGradient(c).Add(); }

double MatmulFlops(const OpCall& call, const std::vector<TensorType>& outputs) {
  return 2.0 * static_cast<double>(NumElements(outputs[0].shape)) * static_cast<double>(ExtentsOf(call).inner_a);
}

}  // namespace

std::vector<OpDef> MatmulDefs() {
  return {{.kind = OpKind::kMatmul,
           .precision = PrecisionClass::kAllow,
           .inputs = {Role::kData, Role::kData, Role::kState, Role::kState},
           .optional_inputs = 2,
           .output_suffixes = {""},
           .infer = InferMatmul,
           .gradient = MatmulGradient,
           .flops = MatmulFlops,
           .bilinear = true}};
}

}  // namespace ampd::ops
