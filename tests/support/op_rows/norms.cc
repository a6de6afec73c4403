// layer_norm, rms_norm and group_norm: in each an element belongs to one statistic and one entry of scale and bias.
#include <cmath>

#include "tests/support/op_rows/rows.h"

namespace ampd::testing {
namespace {

using ir::Attributes;
using ir::OpKind;
using runtime::NodeDesc;
using runtime::StepState;

struct Norm {
  bool centred, grouped;

  explicit Norm(OpKind op)
      : centred(op != OpKind::kRmsNorm && op != OpKind::kRmsNormGrad),
        grouped(op == OpKind::kGroupNorm || op == OpKind::kGroupNormGrad) {}
  size_t statistics() const { return centred ? 2 : 1; }
};

// Which statistic and which entry of scale and bias an element of x belongs to.
struct Places {
  std::vector<int64_t> statistic, entry;
  int64_t statistics = 0, entries = 1;

  Places(const NodeDesc& desc, const Shape& x) {
    const int64_t size = NumElements(x);
    int64_t row = 1;
    for (size_t i = static_cast<size_t>(desc.attributes.Int("axis")); i < x.size(); ++i) row *= x[i];
    const int64_t groups = desc.attributes.Int("groups", 1), channels = x.back();
    const bool grouped = Norm(desc.op).grouped;
    entries = grouped ? channels : row;
    statistics = grouped ? x[0] * groups : size / row;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t image = i / (size / x[0]);
      statistic.push_back(grouped ? image * groups + i % channels / (channels / groups) : i / row);
      entry.push_back(i % entries);
    }
  }
  double count() const { return static_cast<double>(statistic.size()) / static_cast<double>(statistics); }
};

struct Statistics {
  std::vector<double> mean, inverse;
};

Statistics StatisticsOf(const NodeDesc& desc, const RefTensor& x, const Places& at) {
  const auto statistics = static_cast<size_t>(at.statistics);
  Statistics s{std::vector<double>(statistics), std::vector<double>(statistics)};
  if (Norm(desc.op).centred) {
    for (int64_t i = 0; i < x.size(); ++i) s.mean[at.statistic[i]] += x.data[i] / at.count();
  }
  for (int64_t i = 0; i < x.size(); ++i) {
    const double d = x.data[i] - s.mean[at.statistic[i]];
    s.inverse[at.statistic[i]] += d * d / at.count();
  }
  for (double& v : s.inverse) v = 1 / std::sqrt(v + desc.attributes.Double("epsilon"));
  return s;
}

double EntryOr(const RefTensors& in, size_t input, int64_t entry, double absent) {
  return in.size() > input ? in[input].data[entry] : absent;
}

RefTensors Forward(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  const Places at(desc, in[0].shape);
  const Statistics s = StatisticsOf(desc, in[0], at);
  RefTensors out = {Filled(in[0].shape)};
  for (int64_t i = 0; i < in[0].size(); ++i) {
    const double normalized = (in[0].data[i] - s.mean[at.statistic[i]]) * s.inverse[at.statistic[i]];
    out[0].data[i] = normalized * EntryOr(in, 1, at.entry[i], 1) + EntryOr(in, 2, at.entry[i], 0);
  }
  if (Norm(desc.op).centred) out.push_back({desc.outputs[1].shape, s.mean});
  out.push_back({desc.outputs.back().shape, s.inverse});
  return out;
}

// Sums are in double; x minus a mean that was rounded to f32 is what may cancel.
RefTensors ForwardError(const NodeDesc& desc, const RefTensors& in, const RefTensors& out) {
  const Places at(desc, in[0].shape);
  const Statistics s = StatisticsOf(desc, in[0], at);
  RefTensors error;
  for (const RefTensor& t : out) error.push_back(Filled(t.shape));
  const bool centred = Norm(desc.op).centred;
  for (int64_t i = 0; i < in[0].size(); ++i) {
    const int64_t place = at.statistic[i];
    const double magnitude = (std::fabs(in[0].data[i]) + std::fabs(s.mean[place])) * s.inverse[place];
    error[0].data[i] =
        Gamma(10) * (magnitude * std::fabs(EntryOr(in, 1, at.entry[i], 1)) + std::fabs(EntryOr(in, 2, at.entry[i], 0)));
    if (centred) error[1].data[place] += Gamma(1) * kF32Roundoff * std::fabs(in[0].data[i]);
  }
  for (size_t i = 0; i < s.inverse.size(); ++i) error.back().data[i] = Gamma(2) * s.inverse[i];
  return error;
}

// Inputs of the gradient: dy, x, [mean], inverse, [scale, [added to dx]].
struct GradOperands {
  const RefTensor &dy, &x;
  std::vector<double> mean, inverse, scale, added;

  GradOperands(const NodeDesc& desc, const RefTensors& in, const Places& at) : dy(in[0]), x(in[1]) {
    const size_t statistics = Norm(desc.op).statistics();
    mean = statistics == 2 ? in[2].data : std::vector<double>(static_cast<size_t>(at.statistics));
    inverse = in[1 + statistics].data;
    scale = in.size() > 2 + statistics ? in[2 + statistics].data
                                       : std::vector<double>(static_cast<size_t>(at.entries), 1.0);
    added = in.size() > 3 + statistics ? in[3 + statistics].data : std::vector<double>(x.data.size());
  }
};

// The formulas with f = identity give the gradients, with f = magnitude the sums of magnitudes behind them.
RefTensors GradSums(const NodeDesc& desc, const RefTensors& in, bool magnitudes) {
  const Places at(desc, in[1].shape);
  const GradOperands o(desc, in, at);
  const auto f = [&](double v) { return magnitudes ? std::fabs(v) : v; };
  const double sign = magnitudes ? 1 : -1;
  const auto normalized = [&](int64_t i) {
    return f(o.x.data[i] - o.mean[at.statistic[i]]) * o.inverse[at.statistic[i]];
  };
  std::vector<double> g_mean(static_cast<size_t>(at.statistics)), product(static_cast<size_t>(at.statistics));
  RefTensors out;
  for (const ir::TensorType& t : desc.outputs) out.push_back(Filled(t.shape));
  for (int64_t i = 0; i < o.x.size(); ++i) {
    const double g = f(o.dy.data[i] * o.scale[at.entry[i]]);
    if (Norm(desc.op).centred) g_mean[at.statistic[i]] += g / at.count();
    product[at.statistic[i]] += g * normalized(i) / at.count();
    if (out.size() > 1) out[1].data[at.entry[i]] += f(o.dy.data[i]) * normalized(i);
    if (out.size() > 2) out[2].data[at.entry[i]] += f(o.dy.data[i]);
  }
  for (int64_t i = 0; i < o.x.size(); ++i) {
    const double g = f(o.dy.data[i] * o.scale[at.entry[i]]);
    const int64_t place = at.statistic[i];
    out[0].data[i] =
        o.inverse[place] * (g + sign * g_mean[place] + sign * normalized(i) * product[place]) + f(o.added[i]);
  }
  return out;
}

RefTensors Grad(const NodeDesc& desc, const RefTensors& in, const StepState&) { return GradSums(desc, in, false); }

RefTensors GradError(const NodeDesc& desc, const RefTensors& in, const RefTensors&) {
  RefTensors error = GradSums(desc, in, true);
  for (RefTensor& t : error) {
    for (double& v : t.data) v *= Gamma(16);
  }
  return error;
}

// Statistics as the forward pass leaves them.
void AdjustGradInputs(const NodeDesc& desc, RefTensors* inputs) {
  const Statistics s = StatisticsOf(desc, (*inputs)[1], Places(desc, (*inputs)[1].shape));
  const size_t statistics = Norm(desc.op).statistics();
  if (statistics == 2) (*inputs)[2].data = s.mean;
  (*inputs)[1 + statistics].data = s.inverse;
  for (size_t i = 2; i < 2 + statistics; ++i) {
    for (double& v : (*inputs)[i].data) v = RoundToDType(v, DType::kF32);
  }
}

struct Use {
  Attributes attributes;
  Shape x, statistics, vector;
};

Use RowUse(Shape x, int64_t axis, double epsilon) {
  Use use{{{"axis", axis}, {"epsilon", epsilon}}, x, x, Shape(x.begin() + axis, x.end())};
  std::fill(use.statistics.begin() + axis, use.statistics.end(), 1);
  return use;
}

Use GroupUse(Shape x, int64_t groups, double epsilon) {
  return {{{"groups", groups}, {"epsilon", epsilon}}, x, {x[0], groups}, {x.back()}};
}

std::vector<Use> Uses(bool grouped) {
  if (grouped) {
    return {GroupUse({2, 3, 5, 6}, 3, 1e-5), GroupUse({1, 1, 1, 1}, 1, 1e-5),    GroupUse({3, 4, 4, 7}, 7, 1e-3),
            GroupUse({2, 9, 1500}, 2, 1e-5), GroupUse({4, 14, 14, 16}, 1, 1e-5), GroupUse({5, 8}, 4, 1e-5)};
  }
  return {RowUse({3, 7}, 1, 1e-5),    RowUse({2, 3, 5, 7}, 2, 1e-3), RowUse({2, 3, 4}, 0, 1e-5),
          RowUse({1, 1}, 1, 1e-5),    RowUse({5, 1500}, 1, 1e-6),    RowUse({4, 33, 256}, 2, 1e-5),
          RowUse({70, 1025}, 1, 1e-5)};
}

// Forward rows take x, [scale], [bias]; gradient rows dy, x, the statistics, [scale].
std::vector<OpRow> RowsOf(OpKind forward, OpKind gradient) {
  const Norm norm(forward);
  OpRow f{.op = forward, .reference = Forward, .error = ForwardError};
  OpRow g{.op = gradient, .reference = Grad, .error = GradError, .adjust_inputs = AdjustGradInputs};
  const size_t vectors = norm.centred ? 2 : 1;
  for (DType t : {DType::kF32, DType::kF16, DType::kBF16}) {
    const std::vector<DType> statistics(norm.statistics(), DType::kF32);
    for (size_t v = 0; v <= vectors; ++v) {
      std::vector<DType> in(1 + v, DType::kF32), out = statistics;
      in[0] = t;
      out.insert(out.begin(), t);
      f.signatures.push_back({in, out});
    }
    std::vector<DType> in(2 + norm.statistics(), DType::kF32);
    in[0] = in[1] = t;
    g.signatures.push_back({in, {t}});
    in.push_back(DType::kF32);
    std::vector<DType> out(1 + vectors, DType::kF32);
    out[0] = t;
    g.signatures.push_back({in, out});
    if (norm.grouped) continue;
    in.push_back(t);
    g.signatures.push_back({in, out});
  }
  for (const Use& use : Uses(norm.grouped)) {
    std::vector<Shape> in = {use.x};
    for (size_t v = 0; v <= vectors; ++v, in.push_back(use.vector)) {
      f.cases.push_back({use.attributes, in});
      if (NumElements(use.x) < 300) f.gradient_cases.push_back({use.attributes, in});
    }
    std::vector<Shape> grad_in(norm.statistics(), use.statistics);
    grad_in.insert(grad_in.begin(), 2, use.x);
    g.cases.push_back({use.attributes, grad_in});
    grad_in.push_back(use.vector);
    g.cases.push_back({use.attributes, grad_in});
    if (norm.grouped) continue;
    grad_in.push_back(use.x);
    g.cases.push_back({use.attributes, grad_in});
  }
  return {f, g};
}

}  // namespace

std::vector<OpRow> NormsRows() {
  std::vector<OpRow> rows = RowsOf(OpKind::kLayerNorm, OpKind::kLayerNormGrad);
  for (auto [forward, gradient] :
       {std::pair{OpKind::kRmsNorm, OpKind::kRmsNormGrad}, {OpKind::kGroupNorm, OpKind::kGroupNormGrad}}) {
    for (OpRow& row : RowsOf(forward, gradient)) rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace ampd::testing
