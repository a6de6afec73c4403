// One layer, one direction of a recurrent network: lstm, gru and their gradients. docs/ops.md has the formulas.
#include <utility>

#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

// Batch, time steps, input features, hidden features.
struct Extents {
  int64_t batch = 0, time = 0, features = 0, hidden = 0;
};

absl::Status CheckDirection(OpKind op, const OpCall& call) {
  const std::string direction = call.attributes.String("direction");
  if (direction == "forward" || direction == "reverse") return absl::OkStatus();
  return BadNode(op, call, absl::StrCat("direction is \"", direction, "\", must be \"forward\" or \"reverse\""));
}

// x, w_ih, w_hh: `gates` blocks of hidden rows.
absl::Status CheckWeights(OpKind op, const OpCall& call, int64_t gates, Extents* e) {
  AMPD_RETURN_IF_ERROR(CheckDirection(op, call));
  AMPD_RETURN_IF_ERROR(RequireRank(op, call, 0, 3));
  AMPD_RETURN_IF_ERROR(RequireRank(op, call, 2, 2));
  const Shape& x = call.inputs[0].shape;
  *e = {x[0], x[1], x[2], call.inputs[2].shape[1]};
  // So that no product of gates and extents overflows.
  if (e->hidden > (int64_t{1} << 32))
    return BadNode(op, call, absl::StrCat("hidden size ", e->hidden, " is too large"));
  AMPD_RETURN_IF_ERROR(RequireShape(op, call, 2, {gates * e->hidden, e->hidden}));
  return RequireShape(op, call, 1, {gates * e->hidden, e->features});
}

// Inputs that come in pairs are both there or none is.
absl::Status CheckCount(OpKind op, const OpCall& call, std::initializer_list<size_t> counts, const char* order) {
  for (size_t count : counts) {
    if (call.inputs.size() == count) return absl::OkStatus();
  }
  return BadNode(op, call, absl::StrCat("has ", call.inputs.size(), " inputs; optional ones are ", order));
}

absl::Status CheckShapes(OpKind op, const OpCall& call, int first, const std::vector<Shape>& shapes) {
  for (size_t i = 0; i < shapes.size() && first + i < call.inputs.size(); ++i) {
    AMPD_RETURN_IF_ERROR(RequireShape(op, call, first + static_cast<int>(i), shapes[i]));
  }
  return absl::OkStatus();
}

absl::Status InferLstm(const OpCall& call, std::vector<TensorType>* outputs) {
  constexpr OpKind op = OpKind::kLstm;
  AMPD_RETURN_IF_ERROR(CheckCount(op, call, {3, 5, 6, 8, 9}, "b_ih b_hh, lengths, h0 c0, peepholes"));
  Extents e;
  AMPD_RETURN_IF_ERROR(CheckWeights(op, call, 4, &e));
  const int64_t h = e.hidden;
  AMPD_RETURN_IF_ERROR(CheckShapes(op, call, 3, {{4 * h}, {4 * h}, {e.batch}, {e.batch, h}, {e.batch, h}, {3, h}}));
  const DType t = call.inputs[0].dtype;
  *outputs = {{t, {e.batch, e.time, h}},
              {t, {e.batch, h}},
              {DType::kF32, {e.batch, h}},
              {t, {e.batch, e.time, 4 * h}},
              {t, {e.batch, e.time, h}}};
  return absl::OkStatus();
}

absl::Status InferGru(const OpCall& call, std::vector<TensorType>* outputs) {
  constexpr OpKind op = OpKind::kGru;
  AMPD_RETURN_IF_ERROR(CheckCount(op, call, {3, 5, 6, 7}, "b_ih b_hh, lengths, h0"));
  Extents e;
  AMPD_RETURN_IF_ERROR(CheckWeights(op, call, 3, &e));
  const int64_t h = e.hidden;
  AMPD_RETURN_IF_ERROR(CheckShapes(op, call, 3, {{3 * h}, {3 * h}, {e.batch}, {e.batch, h}}));
  const DType t = call.inputs[0].dtype;
  *outputs = {{t, {e.batch, e.time, h}}, {t, {e.batch, h}}, {t, {e.batch, e.time, 4 * h}}};
  return absl::OkStatus();
}

// Extents from dy [batch, time, hidden].
absl::Status GradExtents(OpKind op, const OpCall& call, Extents* e) {
  AMPD_RETURN_IF_ERROR(CheckDirection(op, call));
  AMPD_RETURN_IF_ERROR(RequireRank(op, call, 0, 3));
  const Shape& dy = call.inputs[0].shape;
  *e = {dy[0], dy[1], 0, dy[2]};
  if (e->hidden <= (int64_t{1} << 32)) return absl::OkStatus();
  return BadNode(op, call, absl::StrCat("hidden size ", e->hidden, " is too large"));
}

absl::Status InferLstmGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  constexpr OpKind op = OpKind::kLstmGrad;
  AMPD_RETURN_IF_ERROR(CheckCount(op, call, {7, 8, 10, 11}, "lengths, h0 c0, peepholes"));
  Extents e;
  AMPD_RETURN_IF_ERROR(GradExtents(op, call, &e));
  const int64_t h = e.hidden;
  const Shape state = {e.batch, h}, gates = {e.batch, e.time, 4 * h}, steps = {e.batch, e.time, h};
  AMPD_RETURN_IF_ERROR(
      CheckShapes(op, call, 1, {state, state, {4 * h, h}, steps, gates, steps, {e.batch}, state, state, {3, h}}));
  const DType t = call.inputs[0].dtype;
  *outputs = {{t, gates}, {t, steps}, {t, state}, {DType::kF32, state}};
  if (call.inputs.size() > 10) outputs->push_back({DType::kF32, {3, h}});
  return absl::OkStatus();
}

absl::Status InferGruGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  constexpr OpKind op = OpKind::kGruGrad;
  AMPD_RETURN_IF_ERROR(CheckCount(op, call, {5, 6, 7}, "lengths, h0"));
  Extents e;
  AMPD_RETURN_IF_ERROR(GradExtents(op, call, &e));
  const int64_t h = e.hidden;
  const Shape state = {e.batch, h}, gates = {e.batch, e.time, 3 * h}, steps = {e.batch, e.time, h};
  AMPD_RETURN_IF_ERROR(
      CheckShapes(op, call, 1, {state, {3 * h, h}, steps, {e.batch, e.time, 4 * h}, {e.batch}, state}));
  const DType t = call.inputs[0].dtype;
  *outputs = {{t, gates}, {t, gates}, {t, steps}, {t, state}};
  if (call.attributes.Int("linear_before_reset", 1) == 0) outputs->insert(outputs->end(), {{t, gates}, {t, steps}});
  return absl::OkStatus();
}

// Matrices of one row a time step of a sample.
class StepMatrices {
 public:
  explicit StepMatrices(GradientContext& c) : c_(c) {}

  ir::ValueId Rows(ir::ValueId v, const std::string& suffix) {
    const Shape& s = c_.graph().type(v).shape;
    return Reshape(v, {s[0] * s[1], s[2]}, suffix);
  }
  ir::ValueId Reshape(ir::ValueId v, std::vector<int64_t> shape, const std::string& suffix) {
    return c_.Emit(OpKind::kReshape, {v}, {{"shape", std::move(shape)}}, suffix)[0];
  }
  // left^T right.
  ir::ValueId Product(ir::ValueId left, ir::ValueId right, bool transpose_left, const std::string& suffix) {
    return c_.Emit(OpKind::kMatmul, {left, right}, {{"transpose_a", int64_t{transpose_left}}}, suffix)[0];
  }

 private:
  GradientContext& c_;
};

// What lstm and gru share once the gates' gradients are known: gradients of x and w_ih.
void AddInputSide(GradientContext& c, StepMatrices* m, ir::ValueId gate_rows) {
  if (c.needs_grad(0)) {
    const ir::ValueId rows = m->Product(gate_rows, c.input(1), false, "grad_x_rows");
    c.AddInputGrad(0, m->Reshape(rows, ToInts(c.input_type(0).shape), "grad_x"));
  }
  if (c.needs_grad(1)) c.AddInputGrad(1, m->Product(gate_rows, m->Rows(c.input(0), "x_rows"), true, "grad_w_ih"));
}

// Gradients of b_ih, from those of what it is added to, and of b_hh, from `hidden`; one sum where that is the same.
void AddBiases(GradientContext& c, ir::ValueId gates, ir::ValueId hidden) {
  if (c.node().inputs.size() <= 3) return;
  ir::ValueId sum = -1;
  if (c.needs_grad(3)) {
    sum = c.Emit(OpKind::kBiasAddGrad, {gates}, {}, "grad_b_ih")[0];
    c.AddInputGrad(3, sum);
  }
  if (!c.needs_grad(4)) return;
  const bool same = sum >= 0 && hidden == gates;
  c.AddInputGrad(4, same ? sum : c.Emit(OpKind::kBiasAddGrad, {hidden}, {}, "grad_b_hh")[0]);
}

ir::ValueId GradOrZeros(GradientContext& c, int output) {
  const ir::ValueId grad = c.output_grad(output);
  return grad >= 0 ? grad : c.Zeros(c.graph().type(c.output(output)));
}

void LstmGradient(GradientContext& c) {
  const size_t given = c.node().inputs.size();
  std::vector<ir::ValueId> inputs = {GradOrZeros(c, 0), GradOrZeros(c, 1), GradOrZeros(c, 2), c.input(2),
                                     c.output(0),       c.output(3),       c.output(4)};
  for (size_t i = 5; i < given; ++i) inputs.push_back(c.input(static_cast<int>(i)));
  const std::vector<ir::ValueId> grads = c.Emit(OpKind::kLstmGrad, inputs, c.node().attributes, "grad");
  if (grads[0] < 0) return;
  StepMatrices m(c);
  const ir::ValueId gate_rows = m.Rows(grads[0], "grad_gate_rows");
  AddInputSide(c, &m, gate_rows);
  if (c.needs_grad(2)) c.AddInputGrad(2, m.Product(gate_rows, m.Rows(grads[1], "h_rows"), true, "grad_w_hh"));
  AddBiases(c, grads[0], grads[0]);
  if (given > 6 && c.needs_grad(6)) c.AddInputGrad(6, grads[2]);
  if (given > 6 && c.needs_grad(7)) c.AddInputGrad(7, grads[3]);
  if (given > 8 && c.needs_grad(8)) c.AddInputGrad(8, grads[4]);
}

void GruGradient(GradientContext& c) {
  const size_t given = c.node().inputs.size();
  const bool reset_first = c.node().attributes.Int("linear_before_reset", 1) == 0;
  std::vector<ir::ValueId> inputs = {GradOrZeros(c, 0), GradOrZeros(c, 1), c.input(2), c.output(0), c.output(2)};
  for (size_t i = 5; i < given; ++i) inputs.push_back(c.input(static_cast<int>(i)));
  const std::vector<ir::ValueId> grads = c.Emit(OpKind::kGruGrad, inputs, c.node().attributes, "grad");
  if (grads[0] < 0) return;
  StepMatrices m(c);
  AddInputSide(c, &m, m.Rows(grads[0], "grad_gate_rows"));
  if (c.needs_grad(2)) {
    const ir::ValueId hidden_rows = m.Rows(grads[1], "grad_hidden_rows");
    c.AddInputGrad(2, m.Product(hidden_rows, m.Rows(grads[2], "h_rows"), true, "grad_w_hh"));
    if (reset_first) {
      c.AddInputGrad(
          2, m.Product(m.Rows(grads[4], "grad_new_rows"), m.Rows(grads[5], "reset_rows"), true, "grad_w_hh_new"));
    }
  }
  AddBiases(c, grads[0], grads[reset_first ? 0 : 1]);
  if (given > 6 && c.needs_grad(6)) c.AddInputGrad(6, grads[3]);
}

// Both products of every step; the gates' own arithmetic is small beside them.
double ForwardFlops(const OpCall& call, const std::vector<TensorType>&) {
  const Shape& x = call.inputs[0].shape;
  const Shape& w_hh = call.inputs[2].shape;
  return 2.0 * static_cast<double>(x[0] * x[1]) * static_cast<double>(w_hh[0]) * static_cast<double>(x[2] + w_hh[1]);
}

double GradFlops(const OpCall& call, const std::vector<TensorType>& outputs) {
  return 2.0 * static_cast<double>(NumElements(outputs[0].shape)) * static_cast<double>(call.inputs[0].shape[2]);
}

OpDef Row(OpKind kind, PrecisionClass precision, std::vector<Role> inputs, int optional,
          std::vector<std::string> suffixes) {
  OpDef def;
  def.kind = kind;
  def.precision = precision;
  def.inputs = std::move(inputs);
  def.optional_inputs = optional;
  def.output_suffixes = std::move(suffixes);
  return def;
}

}  // namespace

std::vector<OpDef> RecurrentDefs() {
  const Role d = Role::kData, f = Role::kFloat, i = Role::kIndex;
  OpDef lstm = Row(OpKind::kLstm, PrecisionClass::kAllow, {d, d, d, f, f, i, d, f, f}, 6,
                   {"", ":h_n", ":c_n", ":gates", ":cells"});
  lstm.infer = InferLstm;
  lstm.gradient = LstmGradient;
  lstm.flops = ForwardFlops;
  OpDef lstm_grad = Row(OpKind::kLstmGrad, PrecisionClass::kInfer, {d, d, f, d, d, d, d, i, d, f, f}, 4,
                        {"", ":h_prev", ":h0", ":c0", ":peepholes"});
  lstm_grad.infer = InferLstmGrad;
  lstm_grad.flops = GradFlops;
  OpDef gru = Row(OpKind::kGru, PrecisionClass::kAllow, {d, d, d, f, f, i, d}, 4, {"", ":h_n", ":gates"});
  gru.infer = InferGru;
  gru.gradient = GruGradient;
  gru.flops = ForwardFlops;
  OpDef gru_grad = Row(OpKind::kGruGrad, PrecisionClass::kInfer, {d, d, d, d, d, i, d}, 2,
                       {"", ":hidden", ":h_prev", ":h0", ":new", ":reset"});
  gru_grad.infer = InferGruGrad;
  gru_grad.flops = GradFlops;
  return {lstm, lstm_grad, gru, gru_grad};
}

}  // namespace ampd::ops
