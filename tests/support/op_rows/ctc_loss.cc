// CTC from the definition: the probability of the labels is a polynomial in the time steps' softmaxes, linear in each,
// summed here in linear space over (labels written, whether the path ends in blank).
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/op_rows/rows.h"

namespace ampd::testing {
namespace {

using ir::Attributes;
using ir::OpKind;
using runtime::NodeDesc;
using runtime::StepState;

constexpr DType kF = DType::kF32;
constexpr DType kI = DType::kI32;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Rows = std::vector<std::vector<double>>;

struct Sample {
  std::vector<int64_t> labels;
  int64_t blank = 0;
  Rows softmax;                    // of the time steps that count
  int64_t first = 0, classes = 0;  // place in the batch's logits
  double share = 1;
};

Sample ReadSample(const NodeDesc& desc, const RefTensor* in, int64_t n) {
  const int64_t time = in[0].shape[1];
  Sample s;
  s.blank = desc.attributes.Int("blank");
  s.classes = in[0].shape[2];
  s.first = n * time * s.classes;
  for (int64_t l = 0; l < static_cast<int64_t>(in[3].data[n]); ++l) {
    s.labels.push_back(static_cast<int64_t>(in[1].data[n * in[1].shape[1] + l]));
  }
  for (int64_t t = 0; t < static_cast<int64_t>(in[2].data[n]); ++t) {
    std::vector<double> row(in[0].data.begin() + s.first + t * s.classes,
                            in[0].data.begin() + s.first + (t + 1) * s.classes);
    const double largest = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (double& v : row) sum += v = std::exp(v - largest);
    for (double& v : row) v /= sum;
    s.softmax.push_back(std::move(row));
  }
  if (desc.attributes.Bool("mean_over_labels"))
    s.share = 1.0 / std::max<double>(1, static_cast<double>(s.labels.size()));
  return s;
}

double Probability(const Sample& s, const Rows& rows) {
  const size_t n = s.labels.size();
  std::vector<double> in_blank(n + 1, 0.0), in_label(n + 1, 0.0);
  in_blank[0] = 1;
  for (const std::vector<double>& y : rows) {
    std::vector<double> next_blank(n + 1, 0.0), next_label(n + 1, 0.0);
    for (size_t written = 0; written <= n; ++written) {
      next_blank[written] = (in_blank[written] + in_label[written]) * y[s.blank];
      if (written == 0) continue;
      const int64_t label = s.labels[written - 1];
      double from = in_label[written] + in_blank[written - 1];
      if (written == 1 || s.labels[written - 2] != label) from += in_label[written - 1];
      next_label[written] = from * y[label];
    }
    in_blank = next_blank;
    in_label = next_label;
  }
  return in_blank[n] + in_label[n];
}

RefTensors Losses(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  RefTensor losses = Filled({in[0].shape[0]});
  for (int64_t n = 0; n < losses.size(); ++n) {
    const Sample s = ReadSample(desc, in.data(), n);
    const double loss = -std::log(Probability(s, s.softmax)) * s.share;
    losses.data[n] = loss == kInfinity && desc.attributes.Bool("zero_infinity") ? 0 : loss;
  }
  return {losses};
}

RefTensors LossesGrad(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  RefTensor dz = Filled(in[1].shape);
  for (int64_t n = 0; n < in[0].size(); ++n) {
    const Sample s = ReadSample(desc, in.data() + 1, n);
    const double whole = Probability(s, s.softmax);
    if (whole == 0 && desc.attributes.Bool("zero_infinity")) continue;
    for (size_t t = 0; t < s.softmax.size(); ++t) {
      for (int64_t c = 0; c < s.classes; ++c) {
        Rows only = s.softmax;
        only[t].assign(s.classes, 0.0);
        only[t][c] = s.softmax[t][c];
        dz.data[s.first + static_cast<int64_t>(t) * s.classes + c] =
            in[0].data[n] * s.share * (s.softmax[t][c] - Probability(s, only) / whole);
      }
    }
  }
  return {dz};
}

// Kernels compute in double; a gradient adds up probabilities of states in f32.
RefTensors Error(const NodeDesc& desc, const RefTensors& in, const RefTensors& out) {
  RefTensor error = Filled(out[0].shape, 1e-10);
  if (desc.op == OpKind::kCtcLoss) return {error};
  const int64_t of_sample = error.size() / in[0].size();
  const double states = static_cast<double>(2 * in[2].shape[1] + 1);
  for (int64_t i = 0; i < error.size(); ++i) {
    error.data[i] += std::fabs(in[0].data[i / of_sample]) * Gamma(states + 4);
  }
  return {error};
}

// Labels are classes other than blank, with repeats; lengths reach from none to all, also too short for the labels.
RefTensor Input(const NodeDesc& desc, int i, Random* random) {
  const int logits = desc.op == OpKind::kCtcLoss ? 0 : 1;
  if (i <= logits) return {};
  const Shape& z = desc.inputs[logits].shape;
  RefTensor drawn = Filled(desc.inputs[i].shape);
  const int64_t blank = desc.attributes.Int("blank");
  for (double& v : drawn.data) {
    if (i == logits + 1) {
      const int64_t label = random->Below(std::min<int64_t>(z[2] - 1, 3));
      v = static_cast<double>(label < blank ? label : label + 1);
    } else if (i == logits + 2) {
      v = static_cast<double>(random->Below(4) == 0 ? random->Below(z[1] + 1) : z[1]);
    } else {
      v = static_cast<double>(random->Below(desc.inputs[logits + 1].shape[1] + 1));
    }
  }
  return drawn;
}

OpShapes Case(int64_t batch, int64_t time, int64_t classes, int64_t labels, Attributes a, bool grad) {
  OpShapes shapes{std::move(a), {{batch, time, classes}, {batch, labels}, {batch}, {batch}}};
  if (grad) shapes.inputs.insert(shapes.inputs.begin(), {batch});
  return shapes;
}

std::vector<OpShapes> Cases(bool grad) {
  const Attributes plain{{"blank", int64_t{0}}}, zero{{"blank", int64_t{2}}, {"zero_infinity", int64_t{1}}},
      mean{{"blank", int64_t{1}}, {"zero_infinity", int64_t{1}}, {"mean_over_labels", int64_t{1}}};
  if (grad) return {Case(5, 9, 4, 3, zero, grad), Case(1, 1, 3, 1, zero, grad), Case(7, 20, 5, 6, mean, grad)};
  return {Case(5, 9, 4, 3, plain, grad), Case(9, 6, 4, 4, zero, grad), Case(1, 1, 3, 1, plain, grad),
          Case(4, 50, 28, 12, mean, grad)};
}

}  // namespace

std::vector<OpRow> CtcLossRows() {
  const Attributes zero{{"blank", int64_t{0}}, {"zero_infinity", int64_t{1}}};
  return {{.op = OpKind::kCtcLoss,
           .signatures = {{{kF, kI, kI, kI}, {kF}}},
           .cases = Cases(false),
           .gradient_cases = {Case(3, 7, 4, 3, zero, false)},
           .reference = Losses,
           .error = Error,
           .input = Input},
          {.op = OpKind::kCtcLossGrad,
           .signatures = {{{kF, kF, kI, kI, kI}, {kF}}},
           .cases = Cases(true),
           .reference = LossesGrad,
           .error = Error,
           .input = Input}};
}

}  // namespace ampd::testing
