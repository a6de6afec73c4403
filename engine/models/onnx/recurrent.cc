// LSTM, GRU and RNN. LSTM and GRU with their usual functions are the engine's own; everything else that ONNX allows is
// written out, one time step after the other.
#include <algorithm>

#include "absl/strings/match.h"

#include "engine/core/status.h"
#include "engine/models/onnx/node.h"

namespace ampd::models::onnx {
namespace {

// One of ONNX's activation functions with its constants.
struct Activation {
  std::string name;
  double alpha = 0, beta = 0;

  V operator()(Node& n, V x) const {
    if (name == "Tanh") return n.e.Unary("tanh", x);
    if (name == "Relu") return n.e.Unary("relu", x);
    if (name == "Softplus") return n.e.Unary("softplus", x);
    if (name == "Affine") return n.e.AddScalar(n.e.MulScalar(x, alpha), beta);
    if (name == "LeakyRelu") return n.e.Unary("leaky_relu", x, {{"alpha", alpha}});
    if (name == "Elu") return n.e.Unary("elu", x, {{"alpha", alpha}});
    if (name == "HardSigmoid") return n.e.Unary("hard_sigmoid", x, {{"alpha", alpha}, {"beta", beta}});
    if (name == "ScaledTanh") return n.e.MulScalar(n.e.Unary("tanh", n.e.MulScalar(x, beta)), alpha);
    if (name == "Softsign") return n.e.Div(x, n.e.AddScalar(n.e.Unary("abs", x), 1));
    if (name == "ThresholdedRelu") {
      const V bound = n.e.Scalar(x->type.dtype, alpha), zero = n.e.Scalar(x->type.dtype, 0);
      return n.e.Where(n.e.Binary("less", x, bound), zero, x);
    }
    return n.e.Unary("sigmoid", x);
  }
};

struct Known {
  const char* name;
  bool takes_alpha, takes_beta;
  double alpha, beta;
};
constexpr Known kActivations[] = {
    {"Relu", false, false, 0, 0},        {"Tanh", false, false, 0, 0},
    {"Sigmoid", false, false, 0, 0},     {"Softsign", false, false, 0, 0},
    {"Softplus", false, false, 0, 0},    {"Affine", true, true, 1, 0},
    {"LeakyRelu", true, false, 0.01, 0}, {"ThresholdedRelu", true, false, 1, 0},
    {"ScaledTanh", true, true, 1, 1},    {"HardSigmoid", true, true, 0.2, 0.5},
    {"Elu", true, false, 1, 0},
};

// Attributes, operands and extents of a recurrent node. Sequences are [steps, batch, ...] from here on.
struct Layer {
  int64_t gates;  // rows of the weights in units of hidden
  int64_t steps, batch, input, hidden, directions;
  bool batch_first, reverse;
  V x, w, r, b = nullptr, lengths = nullptr, h = nullptr, c = nullptr, p = nullptr;
  std::vector<Activation> activations;  // by direction, then function
  double clip = 0;

  V Clip(Node& n, V v) const { return clip > 0 ? n.e.Unary("clip", v, {{"min", -clip}, {"max", clip}}) : v; }
};

absl::Status ReadActivations(const Node& n, const std::vector<std::string>& fallback, Layer* layer) {
  std::vector<std::string> names = n.Strings("activations");
  for (int64_t d = 0; n.Attribute("activations") == nullptr && d < layer->directions; ++d) {
    names.insert(names.end(), fallback.begin(), fallback.end());
  }
  if (names.size() != fallback.size() * static_cast<size_t>(layer->directions)) {
    return n.Bad(absl::StrCat("has ", names.size(), " activations"));
  }
  const std::vector<double> alphas = n.Floats("activation_alpha"), betas = n.Floats("activation_beta");
  size_t alpha = 0, beta = 0;
  for (const std::string& name : names) {
    const Known* known = nullptr;
    for (const Known& k : kActivations) {
      if (absl::EqualsIgnoreCase(name, k.name)) known = &k;
    }
    if (known == nullptr) return n.Bad(absl::StrCat("activation is ", name));
    Activation a{known->name, known->alpha, known->beta};
    // Values are taken in order by the functions that have one.
    if (known->takes_alpha && alpha < alphas.size()) a.alpha = alphas[alpha++];
    if (known->takes_beta && beta < betas.size()) a.beta = betas[beta++];
    layer->activations.push_back(std::move(a));
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const Node& n, int i, const Shape& shape) {
  if (n.shape(i) == shape) return absl::OkStatus();
  return n.Bad(absl::StrCat("input ", i, " is ", ShapeString(n.shape(i)), ", needs ", ShapeString(shape)));
}

absl::Status ReadStates(Node& n, Layer* l, bool lstm) {
  const Shape state =
      l->batch_first ? Shape{l->batch, l->directions, l->hidden} : Shape{l->directions, l->batch, l->hidden};
  V* states[] = {&l->h, &l->c};
  for (int i = 0; i < (lstm ? 2 : 1); ++i) {
    if (!n.Has(5 + i)) {
      *states[i] = n.e.Expand(n.e.Scalar(l->x->type.dtype, 0), {l->directions, l->batch, l->hidden});
      continue;
    }
    AMPD_RETURN_IF_ERROR(CheckShape(n, 5 + i, state));
    *states[i] = l->batch_first ? n.e.Transpose(n[5 + i], {1, 0, 2}) : n[5 + i];
  }
  if (lstm && n.Has(7)) {
    AMPD_RETURN_IF_ERROR(CheckShape(n, 7, {l->directions, 3 * l->hidden}));
    l->p = n[7];
  }
  return absl::OkStatus();
}

absl::StatusOr<Layer> ReadLayer(Node& n, int64_t gates, const std::vector<std::string>& activations) {
  Layer l{.gates = gates};
  if (n.rank(0) != 3 || n.rank(1) != 3 || n.rank(2) != 3) return n.Bad("X, W and R need 3 axes");
  l.batch_first = n.Int("layout", 0) != 0;
  l.x = l.batch_first ? n.e.Transpose(n[0], {1, 0, 2}) : n[0];
  AMPD_RETURN_IF_ERROR(n.e.status());
  l.steps = l.x->type.shape[0], l.batch = l.x->type.shape[1], l.input = l.x->type.shape[2];
  l.hidden = n.shape(2)[2];
  const std::string direction = n.String("direction", "forward");
  if (direction != "forward" && direction != "reverse" && direction != "bidirectional") {
    return n.Bad(absl::StrCat("direction is ", direction));
  }
  l.directions = direction == "bidirectional" ? 2 : 1;
  l.reverse = direction == "reverse";
  l.w = n[1], l.r = n[2];
  if (l.steps > (1 << 16) || l.hidden > (1 << 30))
    return n.Bad(absl::StrCat(l.steps, " steps of ", l.hidden, " units"));
  AMPD_RETURN_IF_ERROR(CheckShape(n, 1, {l.directions, gates * l.hidden, l.input}));
  AMPD_RETURN_IF_ERROR(CheckShape(n, 2, {l.directions, gates * l.hidden, l.hidden}));
  if (n.Has(3)) {
    AMPD_RETURN_IF_ERROR(CheckShape(n, 3, {l.directions, 2 * gates * l.hidden}));
    l.b = n[3];
  }
  if (n.Has(4)) {
    AMPD_RETURN_IF_ERROR(CheckShape(n, 4, {l.batch}));
    l.lengths = n.e.Reshape(n.e.Cast(n[4], DType::kI32), {l.batch, 1});
  }
  AMPD_RETURN_IF_ERROR(ReadStates(n, &l, n.op() == "LSTM"));
  l.clip = n.Float("clip", 0);
  AMPD_RETURN_IF_ERROR(ReadActivations(n, activations, &l));
  return l;
}

// What stays the same from step to step, of one direction.
struct Direction {
  const Layer& l;
  const Activation* f;  // the direction's activation functions
  V w, r, wb = nullptr, rb = nullptr, p = nullptr;
};

V Pick(Node& n, V v, int64_t d) {
  const V part = n.e.SliceAxis(v, 0, d, d + 1);
  if (!n.e.ok()) return part;
  return n.e.Reshape(part, Shape(part->type.shape.begin() + 1, part->type.shape.end()));
}

Direction DirectionOf(Node& n, const Layer& l, int64_t d) {
  const size_t functions = l.activations.size() / static_cast<size_t>(l.directions);
  Direction direction{l, &l.activations[static_cast<size_t>(d) * functions], Pick(n, l.w, d), Pick(n, l.r, d)};
  if (l.b != nullptr) {
    const V b = Pick(n, l.b, d);
    direction.wb = n.e.SliceAxis(b, 0, 0, l.gates * l.hidden);
    direction.rb = n.e.SliceAxis(b, 0, l.gates * l.hidden, 2 * l.gates * l.hidden);
  }
  if (l.p != nullptr) direction.p = Pick(n, l.p, d);
  return direction;
}

V Gate(Node& n, const Layer& l, V gates, int64_t g) {
  return n.e.SliceAxis(gates, Emitter::Rank(gates) - 1, g * l.hidden, (g + 1) * l.hidden);
}

// `xw` is x W^T + Wb of one step, [batch, gates * hidden]. h and c are read and written.
void LstmStep(Node& n, const Direction& d, V xw, V* h, V* c) {
  Emitter& e = n.e;
  const Layer& l = d.l;
  V gates = e.Add(xw, e.Matmul(*h, d.r, false, true));
  if (d.rb != nullptr) gates = e.Add(gates, d.rb);
  const auto peephole = [&](V gate, V cell, int64_t part) {
    return d.p == nullptr ? gate : e.Add(gate, e.Mul(Gate(n, l, d.p, part), cell));
  };
  const V i = d.f[0](n, l.Clip(n, peephole(Gate(n, l, gates, 0), *c, 0)));
  const V f = n.Int("input_forget", 0) != 0 ? e.Sub(e.Scalar(i->type.dtype, 1), i)
                                            : d.f[0](n, l.Clip(n, peephole(Gate(n, l, gates, 2), *c, 2)));
  const V g = d.f[1](n, l.Clip(n, Gate(n, l, gates, 3)));
  *c = e.Add(e.Mul(f, *c), e.Mul(i, g));
  const V o = d.f[0](n, l.Clip(n, peephole(Gate(n, l, gates, 1), *c, 1)));
  *h = e.Mul(o, d.f[2](n, *c));
}

void GruStep(Node& n, const Direction& d, V xw, V* h, V*) {
  Emitter& e = n.e;
  const Layer& l = d.l;
  const auto rows = [&](V v, int64_t from, int64_t to) { return e.SliceAxis(v, 0, from * l.hidden, to * l.hidden); };
  const auto biased = [&](V v, int64_t from, int64_t to) {
    return d.rb == nullptr ? v : e.Add(v, rows(d.rb, from, to));
  };
  const V zr = biased(e.Matmul(*h, rows(d.r, 0, 2), false, true), 0, 2);
  const V z = d.f[0](n, l.Clip(n, e.Add(Gate(n, l, xw, 0), Gate(n, l, zr, 0))));
  const V r = d.f[0](n, l.Clip(n, e.Add(Gate(n, l, xw, 1), Gate(n, l, zr, 1))));
  const V rh = rows(d.r, 2, 3);
  const V past = n.Int("linear_before_reset", 0) != 0 ? e.Mul(r, biased(e.Matmul(*h, rh, false, true), 2, 3))
                                                      : biased(e.Matmul(e.Mul(r, *h), rh, false, true), 2, 3);
  const V candidate = d.f[1](n, l.Clip(n, e.Add(Gate(n, l, xw, 2), past)));
  *h = e.Add(e.Mul(e.Sub(e.Scalar(z->type.dtype, 1), z), candidate), e.Mul(z, *h));
}

void RnnStep(Node& n, const Direction& d, V xw, V* h, V*) {
  V sum = n.e.Add(xw, n.e.Matmul(*h, d.r, false, true));
  if (d.rb != nullptr) sum = n.e.Add(sum, d.rb);
  *h = d.f[0](n, d.l.Clip(n, sum));
}

// Blocks of `hidden` rows of `v` in another order.
V Reordered(Node& n, const Layer& l, V v, const std::vector<int64_t>& order) {
  std::vector<V> blocks;
  for (int64_t block : order) blocks.push_back(n.e.SliceAxis(v, 0, block * l.hidden, (block + 1) * l.hidden));
  return n.e.Concat(blocks, 0);
}

// Whether the engine's own operation does what the node says.
bool IsPlain(const Node& n, const Layer& l) {
  const char* lstm[] = {"Sigmoid", "Tanh", "Tanh"};
  if (n.op() == "RNN" || l.clip > 0 || n.Int("input_forget", 0) != 0) return false;
  const size_t functions = l.activations.size() / static_cast<size_t>(l.directions);
  for (size_t i = 0; i < l.activations.size(); ++i) {
    if (l.activations[i].name != lstm[i % functions]) return false;
  }
  return true;
}

// As RunDirection, by the engine's lstm or gru: sequences are [batch, steps, ...] there, gates i, f, g, o or r, z, n.
V RunPlain(Node& n, const Direction& d, bool backwards, V* h, V* c) {
  Emitter& e = n.e;
  const Layer& l = d.l;
  const bool lstm = l.gates == 4;
  const std::vector<int64_t> order = lstm ? std::vector<int64_t>{0, 2, 3, 1} : std::vector<int64_t>{1, 0, 2};
  std::vector<V> inputs = {e.Transpose(l.x, {1, 0, 2}), Reordered(n, l, d.w, order), Reordered(n, l, d.r, order)};
  const V no_bias = e.Expand(e.Scalar(DType::kF32, 0), {l.gates * l.hidden});
  for (V b : {d.wb, d.rb}) inputs.push_back(b == nullptr ? no_bias : Reordered(n, l, b, order));
  const bool states = n.Has(5) || n.Has(6) || d.p != nullptr;
  if (states || l.lengths != nullptr) {
    const V whole = e.Expand(e.Scalar(DType::kI32, static_cast<double>(l.steps)), {l.batch});
    inputs.push_back(l.lengths == nullptr ? whole : e.Reshape(l.lengths, {l.batch}));
  }
  if (states) inputs.push_back(*h);
  if (states && lstm) inputs.push_back(*c);
  if (d.p != nullptr) inputs.push_back(e.Reshape(Reordered(n, l, d.p, {0, 2, 1}), {3, l.hidden}));
  ir::Attributes attributes{{"direction", std::string(backwards ? "reverse" : "forward")}};
  if (!lstm) attributes.Set("linear_before_reset", int64_t{n.Int("linear_before_reset", 0) != 0});
  const std::vector<V> y = e.Op(lstm ? "lstm" : "gru", inputs, attributes);
  *h = y[1];
  if (lstm) *c = e.Cast(y[2], l.x->type.dtype);
  return e.Reshape(e.Transpose(y[0], {1, 0, 2}), {l.steps, 1, l.batch, l.hidden});
}

using Step = void (*)(Node& n, const Direction& d, V xw, V* h, V* c);

// y [steps, 1, batch, hidden] of one direction; h and c become the last ones. Past a sequence's end outputs are zero
// and states stay, so that backwards a sequence begins at its own last element.
V RunDirection(Node& n, const Direction& d, bool backwards, Step step, V* h, V* c) {
  Emitter& e = n.e;
  const Layer& l = d.l;
  // Steps and samples stay axes of their own: of samples beside each other no other batch could be told.
  V xw = e.Matmul(l.x, d.w, false, true);
  if (d.wb != nullptr) xw = e.Add(xw, d.wb);
  std::vector<V> y(static_cast<size_t>(l.steps));
  for (int64_t i = 0; i < l.steps && e.ok(); ++i) {
    const int64_t t = backwards ? l.steps - 1 - i : i;
    const V before_h = *h, before_c = *c;
    step(n, d, Pick(n, xw, t), h, c);
    V out = *h;
    if (l.lengths != nullptr) {
      const V inside = e.Binary("less", e.Scalar(DType::kI32, static_cast<double>(t)), l.lengths);
      out = e.Where(inside, *h, e.Scalar(out->type.dtype, 0));
      *h = e.Where(inside, *h, before_h);
      if (*c != nullptr) *c = e.Where(inside, *c, before_c);
    }
    y[static_cast<size_t>(t)] = e.Reshape(out, {1, 1, l.batch, l.hidden});
  }
  return e.ok() ? e.Concat(y, 0) : e.Placeholder();
}

absl::Status Run(Node& n, const Layer& l, Step step) {
  Emitter& e = n.e;
  if (l.steps == 0) return n.Unsupported("sequences without elements");
  std::vector<V> y, h, c;
  for (int64_t d = 0; d < l.directions; ++d) {
    V state = Pick(n, l.h, d), cell = l.c == nullptr ? nullptr : Pick(n, l.c, d);
    const Direction direction = DirectionOf(n, l, d);
    const bool backwards = l.reverse || d == 1;
    y.push_back(IsPlain(n, l) ? RunPlain(n, direction, backwards, &state, &cell)
                              : RunDirection(n, direction, backwards, step, &state, &cell));
    h.push_back(e.Reshape(state, {1, l.batch, l.hidden}));
    if (cell != nullptr) c.push_back(e.Reshape(cell, {1, l.batch, l.hidden}));
    AMPD_RETURN_IF_ERROR(e.status());
  }
  const V all = e.Concat(y, 1);
  AMPD_RETURN_IF_ERROR(n.Out(0, l.batch_first ? e.Transpose(all, {2, 0, 1, 3}) : all));
  const auto states = [&](const std::vector<V>& parts) {
    const V joined = e.Concat(parts, 0);
    return l.batch_first ? e.Transpose(joined, {1, 0, 2}) : joined;
  };
  AMPD_RETURN_IF_ERROR(n.Out(1, states(h)));
  return c.empty() ? absl::OkStatus() : n.Out(2, states(c));
}

absl::Status Lstm(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const Layer l, ReadLayer(n, 4, {"Sigmoid", "Tanh", "Tanh"}));
  return Run(n, l, LstmStep);
}

absl::Status Gru(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const Layer l, ReadLayer(n, 3, {"Sigmoid", "Tanh"}));
  return Run(n, l, GruStep);
}

absl::Status Rnn(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const Layer l, ReadLayer(n, 1, {"Tanh"}));
  return Run(n, l, RnnStep);
}

}  // namespace

std::vector<Rule> RecurrentRules() { return NeverEmpty({{"LSTM", Lstm, 3}, {"GRU", Gru, 3}, {"RNN", Rnn, 3}}); }

}  // namespace ampd::models::onnx
