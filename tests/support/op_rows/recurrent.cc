// lstm and gru by their formulas, in numbers that carry a bound of the error that a kernel may have made: a running
// error analysis (Higham 2002, section 3.3), since what one step rounds the next ones amplify.
#include <algorithm>
#include <array>
#include <cmath>

#include "tests/support/op_rows/rows.h"

namespace ampd::testing {
namespace {

using ir::Attributes;
using ir::OpKind;
using runtime::KernelTable;
using runtime::NodeDesc;
using runtime::StepState;

constexpr double kU = kF32Roundoff;

struct Num {
  double v = 0;
  double e = 0;
};

Num Rounded(double v, double e) { return {v, e + kU * (std::fabs(v) + e)}; }
Num operator+(Num a, Num b) { return Rounded(a.v + b.v, a.e + b.e); }
Num operator-(Num a, Num b) { return Rounded(a.v - b.v, a.e + b.e); }
Num operator*(Num a, Num b) { return Rounded(a.v * b.v, std::fabs(a.v) * b.e + std::fabs(b.v) * a.e + a.e * b.e); }
// Slopes of at most 1/4 and 1; functions of a few units in the last place.
Num Sigmoid(Num a) {
  const double s = 1 / (1 + std::exp(-a.v));
  return {s, a.e / 4 + 4 * kU * s};
}
Num Tanh(Num a) { return {std::tanh(a.v), a.e + 4 * kU * std::fabs(std::tanh(a.v))}; }

// Stored in the node's dtype and read again.
Num Stored(Num a, DType dtype) { return {a.v, a.e + UnitRoundoff(dtype) * (std::fabs(a.v) + a.e) + 0x1p-25}; }

// As a product's operand: wherever the kernel's value lies within the bound, so does what it rounds to.
Num Tf32(Num a) {
  const double v = RoundTf32(a.v);
  return {v, std::max(RoundTf32(a.v + a.e) - v, v - RoundTf32(a.v - a.e))};
}

using Nums = std::vector<Num>;

// A matrix of exact numbers, by rows.
struct Matrix {
  const RefTensor& t;
  double at(int64_t row, int64_t column) const { return t.data[row * t.shape[1] + column]; }
};

bool RoundsOperands(const NodeDesc& desc) { return desc.attributes.Bool(kRoundOperands); }

// Sum over k of a[k] * w(k), in any order, products exact in f32 or rounded.
template <typename W>
Num Dot(bool tf32, Nums a, const W& w) {
  if (tf32) std::transform(a.begin(), a.end(), a.begin(), Tf32);
  Num sum;
  double magnitude = 0;
  for (size_t k = 0; k < a.size(); ++k) {
    const double exact = w(static_cast<int64_t>(k)), b = tf32 ? RoundTf32(exact) : exact;
    sum.v += a[k].v * b;
    sum.e += a[k].e * std::fabs(b);
    magnitude += (std::fabs(a[k].v) + a[k].e) * std::fabs(b);
  }
  sum.e += Gamma(static_cast<double>(a.size()) + 2) * magnitude;
  return sum;
}

Nums Exact(const RefTensor& t, int64_t first, int64_t n) {
  Nums nums;
  for (int64_t i = first; i < first + n; ++i) nums.push_back({t.data[i], 0});
  return nums;
}

struct Results {
  RefTensors values, errors;

  void Add(const Shape& shape) {
    values.push_back(Filled(shape));
    errors.push_back(Filled(shape));
  }
  void Put(size_t output, int64_t at, Num a) {
    values[output].data[at] = a.v;
    errors[output].data[at] = a.e;
  }
  void Put(size_t output, int64_t first, const Nums& nums) {
    for (size_t i = 0; i < nums.size(); ++i) Put(output, first + static_cast<int64_t>(i), nums[i]);
  }
};

// The way of one sample through its own steps.
struct Walk {
  bool reverse;
  int64_t time, length;

  Walk(const NodeDesc& desc, const RefTensors& in, size_t lengths, int64_t sample, int64_t steps)
      : reverse(desc.attributes.String("direction") == "reverse"),
        time(steps),
        length(in.size() > lengths ? std::clamp<int64_t>(static_cast<int64_t>(in[lengths].data[sample]), 0, steps)
                                   : steps) {}
  int64_t at(int64_t step) const { return reverse ? length - 1 - step : step; }
};

Results MakeResults(const NodeDesc& desc) {
  Results r;
  for (const ir::TensorType& t : desc.outputs) r.Add(t.shape);
  return r;
}

// x W_ih^T + b_ih and h W_hh^T + b_hh of one gate's unit.
struct Shares {
  bool tf32;
  const RefTensors& in;
  Nums x, h;

  Num input(int64_t row) const {
    const Num sum = Dot(tf32, x, [&](int64_t k) { return Matrix{in[1]}.at(row, k); });
    return in.size() > 3 ? sum + Num{in[3].data[row], 0} : sum;
  }
  Num hidden(int64_t row) const {
    const Num sum = Dot(tf32, h, [&](int64_t k) { return Matrix{in[2]}.at(row, k); });
    return in.size() > 3 ? sum + Num{in[4].data[row], 0} : sum;
  }
};

Results LstmRun(const NodeDesc& desc, const RefTensors& in) {
  const int64_t batch = in[0].shape[0], time = in[0].shape[1], features = in[0].shape[2], n = in[2].shape[1];
  const DType dtype = desc.outputs[0].dtype;
  Results r = MakeResults(desc);
  for (int64_t b = 0; b < batch; ++b) {
    const Walk walk(desc, in, 5, b, time);
    Nums h = in.size() > 6 ? Exact(in[6], b * n, n) : Nums(n), c = in.size() > 6 ? Exact(in[7], b * n, n) : Nums(n);
    for (int64_t step = 0; step < walk.length; ++step) {
      const int64_t at = b * time + walk.at(step);
      const Shares shares{RoundsOperands(desc), in, Exact(in[0], at * features, features), h};
      Nums next_h(n);
      for (int64_t j = 0; j < n; ++j) {
        const auto peep = [&](int64_t gate) { return in.size() > 8 ? Num{in[8].data[gate * n + j], 0} : Num{}; };
        const auto before = [&](int64_t gate) { return shares.input(gate * n + j) + shares.hidden(gate * n + j); };
        const Num i = Sigmoid(before(0) + peep(0) * c[j]), f = Sigmoid(before(1) + peep(1) * c[j]);
        const Num g = Tanh(before(2));
        c[j] = f * c[j] + i * g;
        const Num o = Sigmoid(before(3) + peep(2) * c[j]);
        next_h[j] = o * Tanh(c[j]);
        for (int64_t gate = 0; gate < 4; ++gate) {
          r.Put(3, at * 4 * n + gate * n + j, std::array<Num, 4>{i, f, g, o}[gate]);
        }
        r.Put(0, at * n + j, next_h[j]);
        r.Put(4, at * n + j, c[j]);
        next_h[j] = Stored(next_h[j], dtype);
      }
      h = next_h;
    }
    r.Put(1, b * n, h);
    r.Put(2, b * n, c);
  }
  return r;
}

Results GruRun(const NodeDesc& desc, const RefTensors& in) {
  const int64_t batch = in[0].shape[0], time = in[0].shape[1], features = in[0].shape[2], n = in[2].shape[1];
  const bool reset_first = desc.attributes.Int("linear_before_reset", 1) == 0;
  const DType dtype = desc.outputs[0].dtype;
  Results r = MakeResults(desc);
  for (int64_t b = 0; b < batch; ++b) {
    const Walk walk(desc, in, 5, b, time);
    Nums h = in.size() > 6 ? Exact(in[6], b * n, n) : Nums(n);
    for (int64_t step = 0; step < walk.length; ++step) {
      const int64_t at = b * time + walk.at(step);
      Shares shares{RoundsOperands(desc), in, Exact(in[0], at * features, features), h};
      Nums reset(n), update(n), gated(n);
      for (int64_t j = 0; j < n; ++j) {
        reset[j] = Sigmoid(shares.input(j) + shares.hidden(j));
        update[j] = Sigmoid(shares.input(n + j) + shares.hidden(n + j));
        gated[j] = reset[j] * h[j];
      }
      if (reset_first) {
        for (int64_t j = 0; j < n; ++j) shares.h[j] = Stored(gated[j], dtype);
      }
      for (int64_t j = 0; j < n; ++j) {
        const Num q = shares.hidden(2 * n + j);
        const Num fresh = Tanh(shares.input(2 * n + j) + (reset_first ? q : reset[j] * q));
        // Where the reset stands first, the gates are stored between the halves of a step.
        const Num z = reset_first ? Stored(update[j], dtype) : update[j];
        const Num y = (Num{1, 0} - z) * fresh + z * h[j];
        r.Put(0, at * n + j, y);
        const std::array<Num, 4> gates = {reset[j], update[j], fresh, reset_first ? gated[j] : q};
        for (int64_t gate = 0; gate < 4; ++gate) r.Put(2, at * 4 * n + gate * n + j, gates[gate]);
      }
      for (int64_t j = 0; j < n; ++j) {
        h[j] = Stored({r.values[0].data[at * n + j], r.errors[0].data[at * n + j]}, dtype);
      }
    }
    r.Put(1, b * n, h);
  }
  return r;
}

// A state before step `step` of a sample: the one that `steps` holds, or the initial one.
Nums StateBefore(const Walk& walk, int64_t sample, int64_t step, const RefTensor& steps, const RefTensor* initial) {
  const int64_t n = steps.shape[2];
  if (step > 0) return Exact(steps, (sample * walk.time + walk.at(step - 1)) * n, n);
  return initial != nullptr ? Exact(*initial, sample * n, n) : Nums(n);
}

// Inputs: dy, dh_n, dc_n, w_hh, y, gates, cells, lengths, h0, c0, peepholes.
Results LstmGradRun(const NodeDesc& desc, const RefTensors& in) {
  const int64_t batch = in[0].shape[0], time = in[0].shape[1], n = in[0].shape[2];
  const DType dtype = desc.outputs[0].dtype;
  const Num one{1, 0};
  Results r = MakeResults(desc);
  const bool tf32 = RoundsOperands(desc);
  Nums dpeep(3 * n);
  for (int64_t b = 0; b < batch; ++b) {
    const Walk walk(desc, in, 7, b, time);
    Nums dh = Exact(in[1], b * n, n), dc = Exact(in[2], b * n, n);
    for (int64_t step = walk.length; step-- > 0;) {
      const int64_t at = b * time + walk.at(step);
      const Nums c = Exact(in[6], at * n, n), gates = Exact(in[5], at * 4 * n, 4 * n);
      const Nums before = StateBefore(walk, b, step, in[6], in.size() > 8 ? &in[9] : nullptr);
      r.Put(1, at * n, StateBefore(walk, b, step, in[4], in.size() > 8 ? &in[8] : nullptr));
      Nums dgates(4 * n);
      for (int64_t j = 0; j < n; ++j) {
        const Num i = gates[j], f = gates[n + j], g = gates[2 * n + j], o = gates[3 * n + j], t = Tanh(c[j]);
        const auto peep = [&](int64_t gate) { return in.size() > 10 ? Num{in[10].data[gate * n + j], 0} : Num{}; };
        const Num d = dh[j] + Num{in[0].data[at * n + j], 0};
        dgates[3 * n + j] = d * t * (o * (one - o));
        dc[j] = dc[j] + (d * o * (one - t * t) + dgates[3 * n + j] * peep(2));
        dgates[j] = dc[j] * g * (i * (one - i));
        dgates[n + j] = dc[j] * before[j] * (f * (one - f));
        dgates[2 * n + j] = dc[j] * i * (one - g * g);
        dc[j] = dc[j] * f + dgates[j] * peep(0) + dgates[n + j] * peep(1);
        dpeep[j] = dpeep[j] + dgates[j] * before[j];
        dpeep[n + j] = dpeep[n + j] + dgates[n + j] * before[j];
        dpeep[2 * n + j] = dpeep[2 * n + j] + dgates[3 * n + j] * c[j];
      }
      r.Put(0, at * 4 * n, dgates);
      for (Num& d : dgates) d = Stored(d, dtype);
      for (int64_t j = 0; j < n; ++j) dh[j] = Dot(tf32, dgates, [&](int64_t k) { return Matrix{in[3]}.at(k, j); });
    }
    r.Put(2, b * n, dh);
    r.Put(3, b * n, dc);
  }
  if (in.size() > 10) r.Put(4, 0, dpeep);
  return r;
}

// Inputs: dy, dh_n, w_hh, y, gates, lengths, h0.
Results GruGradRun(const NodeDesc& desc, const RefTensors& in) {
  const int64_t batch = in[0].shape[0], time = in[0].shape[1], n = in[0].shape[2];
  const bool reset_first = desc.attributes.Int("linear_before_reset", 1) == 0;
  const DType dtype = desc.outputs[0].dtype;
  const Num one{1, 0};
  Results r = MakeResults(desc);
  // Rows first..first+count-1 of w_hh times the gradients of their gates.
  const auto back = [&](Nums d, int64_t first, int64_t j) {
    for (Num& v : d) v = Stored(v, dtype);
    return Dot(RoundsOperands(desc), d, [&](int64_t k) { return Matrix{in[2]}.at(first + k, j); });
  };
  for (int64_t b = 0; b < batch; ++b) {
    const Walk walk(desc, in, 5, b, time);
    Nums dh = Exact(in[1], b * n, n);
    for (int64_t step = walk.length; step-- > 0;) {
      const int64_t at = b * time + walk.at(step);
      const Nums gates = Exact(in[4], at * 4 * n, 4 * n);
      const Nums before = StateBefore(walk, b, step, in[3], in.size() > 6 ? &in[6] : nullptr);
      r.Put(2, at * n, before);
      Nums dr(n), dz(n), dfresh(n), dq(n), through(n), direct(n);
      for (int64_t j = 0; j < n; ++j) {
        const Num z = gates[n + j], fresh = gates[2 * n + j];
        const Num d = dh[j] + Num{in[0].data[at * n + j], 0};
        dz[j] = d * (before[j] - fresh) * (z * (one - z));
        dfresh[j] = d * (one - z) * (one - fresh * fresh);
        dq[j] = dfresh[j] * gates[j];
        direct[j] = d * z;
      }
      for (int64_t j = 0; j < n; ++j) {
        if (reset_first) through[j] = back(dfresh, 2 * n, j);
        const Num slope = gates[j] * (one - gates[j]);
        dr[j] = reset_first ? through[j] * before[j] * slope : dfresh[j] * gates[3 * n + j] * slope;
      }
      Nums dgates = dr;
      dgates.insert(dgates.end(), dz.begin(), dz.end());
      for (int64_t j = 0; j < n; ++j) {
        if (reset_first) {
          dh[j] = direct[j] + back(dgates, 0, j) + through[j] * gates[j];
        } else {
          dh[j] = direct[j] + back(dgates, 0, j) + back(dq, 2 * n, j);
        }
      }
      r.Put(0, at * 3 * n, dgates), r.Put(1, at * 3 * n, dgates);
      r.Put(0, at * 3 * n + 2 * n, dfresh);
      if (!reset_first) r.Put(1, at * 3 * n + 2 * n, dq);
      if (reset_first) r.Put(4, at * 3 * n + 2 * n, dfresh);
      if (reset_first) r.Put(5, at * n, Nums(gates.begin() + 3 * n, gates.end()));
    }
    r.Put(3, b * n, dh);
  }
  return r;
}

template <Results (*kRun)(const NodeDesc&, const RefTensors&)>
RefTensors Values(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  return kRun(desc, in).values;
}

template <Results (*kRun)(const NodeDesc&, const RefTensors&)>
RefTensors Errors(const NodeDesc& desc, const RefTensors& in, const RefTensors&) {
  RefTensors errors = kRun(desc, in).errors;
  // Products of denormals.
  for (RefTensor& t : errors) {
    for (double& e : t.data) e = 1.01 * e + 1e-30;
  }
  return errors;
}

bool IsGrad(OpKind op) { return op == OpKind::kLstmGrad || op == OpKind::kGruGrad; }

// Gates as they come out of their functions; lengths from none to all steps.
RefTensor Input(const NodeDesc& desc, int i, Random* random) {
  const ir::TensorType& type = desc.inputs[i];
  if (type.dtype == DType::kI32) {
    RefTensor lengths = Filled(type.shape);
    for (double& v : lengths.data) v = static_cast<double>(random->Below(desc.inputs[0].shape[1] + 1));
    lengths.data[0] = static_cast<double>(desc.inputs[0].shape[1]);
    return lengths;
  }
  const bool gates = IsGrad(desc.op) && type.shape.size() == 3 && type.shape[2] == 4 * desc.inputs[0].shape[2];
  if (gates) return RandomTensor(random, type.shape, type.dtype, 0, 1);
  return RandomTensor(random, type.shape, type.dtype, -1, 1);
}

std::vector<KernelTable::Signature> Signatures(const std::vector<char>& inputs, const std::vector<char>& outputs,
                                               const std::vector<size_t>& counts, size_t more_outputs_from = 99) {
  std::vector<KernelTable::Signature> list;
  for (DType t : {DType::kF32, DType::kF16, DType::kBF16}) {
    const auto dtypes = [&](const std::vector<char>& kinds, size_t n) {
      std::vector<DType> result;
      for (size_t i = 0; i < n; ++i) {
        result.push_back(kinds[i] == 'd' ? t : kinds[i] == 'i' ? DType::kI32 : DType::kF32);
      }
      return result;
    };
    for (size_t n : counts) {
      const bool all = n >= more_outputs_from || more_outputs_from == 99;
      list.push_back({dtypes(inputs, n), dtypes(outputs, all ? outputs.size() : outputs.size() - 1)});
    }
  }
  return list;
}

struct Sizes {
  int64_t batch, time, features, hidden;
};

std::vector<Attributes> Directions(bool gru) {
  std::vector<Attributes> list;
  for (const char* direction : {"forward", "reverse"}) {
    const Attributes a{{"direction", std::string(direction)}};
    list.push_back(a);
    if (!gru) continue;
    list.push_back(a);
    list.back().Set("linear_before_reset", int64_t{0});
  }
  return list;
}

std::vector<OpShapes> Cases(bool gru, bool grad, const std::vector<size_t>& counts, const std::vector<Sizes>& sizes) {
  std::vector<OpShapes> list;
  const int64_t blocks = gru ? 3 : 4;
  for (const Sizes& s : sizes) {
    const int64_t h = s.hidden;
    const Shape state = {s.batch, h}, steps = {s.batch, s.time, h}, gates = {s.batch, s.time, 4 * h};
    std::vector<Shape> all = {{s.batch, s.time, s.features},
                              {blocks * h, s.features},
                              {blocks * h, h},
                              {blocks * h},
                              {blocks * h},
                              {s.batch},
                              state,
                              state,
                              {3, h}};
    if (grad && gru) all = {steps, state, {3 * h, h}, steps, gates, {s.batch}, state};
    if (grad && !gru) all = {steps, state, state, {4 * h, h}, steps, gates, steps, {s.batch}, state, state, {3, h}};
    for (const Attributes& a : Directions(gru)) {
      for (size_t n : counts) list.push_back({a, {all.begin(), all.begin() + static_cast<int64_t>(n)}});
    }
  }
  return list;
}

}  // namespace

std::vector<OpRow> RecurrentRows() {
  const std::vector<Sizes> sizes = {{3, 5, 4, 6}, {1, 1, 1, 1}, {5, 3, 17, 33}}, small = {{3, 4, 2, 3}};
  const std::vector<size_t> lstm = {3, 5, 6, 8, 9}, lstm_grad = {7, 8, 10, 11}, gru = {3, 5, 6, 7},
                            gru_grad = {5, 6, 7};
  std::vector<KernelTable::Signature> gru_grads;
  for (const std::vector<char>& outputs : {std::vector<char>(4, 'd'), std::vector<char>(6, 'd')}) {
    for (auto& s : Signatures({'d', 'd', 'd', 'd', 'd', 'i', 'd'}, outputs, gru_grad)) gru_grads.push_back(s);
  }
  return {{.op = OpKind::kLstm,
           .signatures = Signatures({'d', 'd', 'd', 'f', 'f', 'i', 'd', 'f', 'f'}, {'d', 'd', 'f', 'd', 'd'}, lstm),
           .cases = Cases(false, false, lstm, sizes),
           .gradient_cases = Cases(false, false, lstm, small),
           .differentiable_outputs = 3,
           .reference = Values<LstmRun>,
           .error = Errors<LstmRun>,
           .input = Input},
          {.op = OpKind::kLstmGrad,
           .signatures = Signatures({'d', 'd', 'f', 'd', 'd', 'd', 'd', 'i', 'd', 'f', 'f'}, {'d', 'd', 'd', 'f', 'f'},
                                    lstm_grad, 11),
           .cases = Cases(false, true, lstm_grad, sizes),
           .reference = Values<LstmGradRun>,
           .error = Errors<LstmGradRun>,
           .input = Input},
          {.op = OpKind::kGru,
           .signatures = Signatures({'d', 'd', 'd', 'f', 'f', 'i', 'd'}, {'d', 'd', 'd'}, gru),
           .cases = Cases(true, false, gru, sizes),
           .gradient_cases = Cases(true, false, gru, small),
           .differentiable_outputs = 2,
           .reference = Values<GruRun>,
           .error = Errors<GruRun>,
           .input = Input},
          {.op = OpKind::kGruGrad,
           .signatures = gru_grads,
           .cases = Cases(true, true, gru_grad, sizes),
           .reference = Values<GruGradRun>,
           .error = Errors<GruGradRun>,
           .input = Input}};
}

}  // namespace ampd::testing
