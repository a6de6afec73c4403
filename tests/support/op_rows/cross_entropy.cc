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

// Operands of one of the four ops, whatever its positions.
struct Operands {
  const RefTensor* dlosses;  // null: forward
  const RefTensor& logits;
  const RefTensor& labels;         // or targets
  const RefTensor* class_weights;  // may be null
  bool soft;
  double smoothing;
  bool ignores;
  int64_t ignored;
  int64_t given;  // classes; 0: all columns

  int64_t columns() const { return logits.shape.back(); }
  int64_t classes() const { return given > 0 ? given : columns(); }
  int64_t rows() const { return logits.size() / columns(); }
  double weight(int64_t c) const { return class_weights == nullptr ? 1 : class_weights->data[c]; }
  bool counts(int64_t row) const {
    if (soft) return true;
    const auto label = static_cast<int64_t>(labels.data[row]);
    return label >= 0 && label < classes() && !(ignores && label == ignored);
  }
  // The factor of -log softmax[c] in a row's loss.
  double goal(int64_t row, int64_t c) const {
    const double target = soft ? labels.data[row * classes() + c] : labels.data[row] == static_cast<double>(c);
    const double even = smoothing * weight(c) / static_cast<double>(classes());
    if (soft) return (1 - smoothing) * target * weight(c) + even;
    return (1 - smoothing) * target * weight(static_cast<int64_t>(labels.data[row])) + even;
  }
  // log softmax; NaN where a logit is not finite.
  std::vector<double> LogSoftmax(int64_t row) const {
    const auto first = logits.data.begin() + row * columns();
    std::vector<double> z(first, first + classes());
    double sum = 0;
    const double largest = *std::max_element(z.begin(), z.end());
    for (double v : z) sum += std::isfinite(v) ? std::exp(v - largest) : std::numeric_limits<double>::quiet_NaN();
    for (double& v : z) v = v - largest - std::log(sum);
    return z;
  }
};

Operands Read(const NodeDesc& desc, const RefTensors& in) {
  const bool soft = desc.op == OpKind::kSoftCrossEntropy || desc.op == OpKind::kSoftCrossEntropyGrad;
  const bool grad = desc.op == OpKind::kSoftmaxCrossEntropyGrad || desc.op == OpKind::kSoftCrossEntropyGrad;
  const size_t z = grad ? 1 : 0;
  return {grad ? &in[0] : nullptr,
          in[z],
          in[z + 1],
          in.size() > z + 2 ? &in[z + 2] : nullptr,
          soft,
          desc.attributes.Double("smoothing"),
          desc.attributes.Has("ignore_index"),
          desc.attributes.Int("ignore_index"),
          desc.attributes.Int("classes")};
}

Shape Leading(const Shape& s) { return Shape(s.begin(), s.end() - 1); }

RefTensors Losses(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  const Operands o = Read(desc, in);
  RefTensor losses = Filled(Leading(o.logits.shape)), weights = losses;
  for (int64_t r = 0; r < o.rows(); ++r) {
    if (!o.counts(r)) continue;
    const std::vector<double> log_softmax = o.LogSoftmax(r);
    for (int64_t c = 0; c < o.classes(); ++c) losses.data[r] -= o.goal(r, c) * log_softmax[c];
    if (!o.soft) weights.data[r] = o.weight(static_cast<int64_t>(o.labels.data[r]));
  }
  if (o.soft) return {losses};
  return {losses, weights};
}

RefTensors LossesGrad(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  const Operands o = Read(desc, in);
  RefTensor dz = Filled(o.logits.shape);
  for (int64_t r = 0; r < o.rows(); ++r) {
    if (!o.counts(r)) continue;
    const std::vector<double> log_softmax = o.LogSoftmax(r);
    double total = 0;
    for (int64_t c = 0; c < o.classes(); ++c) total += o.goal(r, c);
    for (int64_t c = 0; c < o.classes(); ++c) {
      dz.data[r * o.columns() + c] = o.dlosses->data[r] * (total * std::exp(log_softmax[c]) - o.goal(r, c));
    }
  }
  return {dz};
}

// One rounding of an argument costs exp and log its magnitude in units of roundoff; sums run along 16 lanes in pieces
// of 1024.
double RowError(const Operands& o, int64_t row) {
  double largest = 1, goals = 0;
  for (int64_t c = 0; c < o.classes(); ++c) {
    largest = std::max(largest, 1 + 2 * std::fabs(o.logits.data[row * o.columns() + c]));
    goals += std::fabs(o.goal(row, c));
  }
  const double terms = static_cast<double>(std::min<int64_t>(o.classes(), 1024)) / 16 + 24;
  return goals * largest * Gamma(terms);
}

RefTensors Error(const NodeDesc& desc, const RefTensors& in, const RefTensors& out) {
  const Operands o = Read(desc, in);
  RefTensors errors = {Filled(out[0].shape)};
  for (int64_t r = 0; r < o.rows(); ++r) {
    if (!o.counts(r)) continue;
    if (o.dlosses == nullptr) {
      errors[0].data[r] = RowError(o, r);
      continue;
    }
    const double error = std::fabs(o.dlosses->data[r]) * RowError(o, r);
    std::fill_n(errors[0].data.begin() + r * o.columns(), o.classes(), error);
  }
  if (out.size() > 1) errors.push_back(Filled(out[1].shape));
  return errors;
}

// Labels from -1 to one past the last class; class weights that are not negative.
RefTensor Input(const NodeDesc& desc, int i, Random* random) {
  const ir::TensorType& type = desc.inputs[i];
  if (type.dtype == kI) {
    RefTensor labels = Filled(type.shape);
    const int64_t classes = desc.attributes.Int("classes", desc.inputs[i - 1].shape.back());
    for (double& v : labels.data) v = static_cast<double>(random->Below(classes + 2) - 1);
    return labels;
  }
  const bool forward = desc.op == OpKind::kSoftmaxCrossEntropy || desc.op == OpKind::kSoftCrossEntropy;
  const int weights = forward ? 2 : 3;
  if (i == weights) return RandomTensor(random, type.shape, type.dtype, 0.25, 2);
  return {};
}

std::vector<OpShapes> Cases(bool grad, bool soft) {
  std::vector<OpShapes> list;
  const std::vector<Attributes> attributes = {
      {}, {{"smoothing", 0.1}}, {{"ignore_index", int64_t{1}}}, {{"smoothing", 1.0}, {"ignore_index", int64_t{0}}}};
  const auto add = [&](const Attributes& a, const Shape& s, int64_t classes) {
    Shape targets = Leading(s);
    if (soft) targets.push_back(classes);
    OpShapes shapes{a, {s, targets}};
    if (grad) shapes.inputs.insert(shapes.inputs.begin(), Leading(s));
    list.push_back(shapes);
    shapes.inputs.push_back({classes});
    list.push_back(shapes);
  };
  // Padded columns behind the classes.
  for (const auto& [s, classes] :
       {std::pair{Shape{3, 16}, int64_t{10}}, {Shape{2, 8}, 1}, {Shape{3, 1008}, 1001}, {Shape{2, 3, 5}, 4}}) {
    for (Attributes a : attributes) {
      a.Set("classes", classes);
      add(a, s, classes);
    }
  }
  for (const Shape& s :
       {Shape{1, 1}, Shape{7, 10}, Shape{3, 1000}, Shape{600, 11}, Shape{2, 3, 5}, Shape{2, 1, 2049}, Shape{3, 16}}) {
    for (const Attributes& a : attributes) add(a, s, s.back());
  }
  return list;
}

std::vector<OpShapes> GradientCases(bool soft) {
  std::vector<OpShapes> list;
  for (const OpShapes& shapes : Cases(false, soft)) {
    if (NumElements(shapes.inputs[0]) <= 70) list.push_back(shapes);
  }
  return list;
}

// Of logits in each of the data types, before and behind the dtypes given; a gradient has its logits' dtype.
std::vector<runtime::KernelTable::Signature> Signatures(const std::vector<DType>& before,
                                                        const std::vector<DType>& behind,
                                                        const std::vector<DType>& results) {
  std::vector<runtime::KernelTable::Signature> list;
  for (DType z : {kF, DType::kF16, DType::kBF16}) {
    runtime::KernelTable::Signature own{before, results.empty() ? std::vector<DType>{z} : results};
    own.first.push_back(z);
    own.first.insert(own.first.end(), behind.begin(), behind.end());
    list.push_back(own);
    own.first.push_back(kF);
    list.push_back(own);
  }
  return list;
}

}  // namespace

std::vector<OpRow> CrossEntropyRows() {
  OpRow hard{.op = OpKind::kSoftmaxCrossEntropy,
             .signatures = Signatures({}, {kI}, {kF, kF}),
             .cases = Cases(false, false),
             .gradient_cases = GradientCases(false),
             .constant_inputs = {2},
             .reference = Losses,
             .error = Error,
             .input = Input};
  OpRow soft{.op = OpKind::kSoftCrossEntropy,
             .signatures = Signatures({}, {kF}, {kF}),
             .cases = Cases(false, true),
             .gradient_cases = GradientCases(true),
             .constant_inputs = {1, 2},
             .reference = Losses,
             .error = Error,
             .input = Input};
  OpRow hard_grad{.op = OpKind::kSoftmaxCrossEntropyGrad,
                  .signatures = Signatures({kF}, {kI}, {}),
                  .cases = Cases(true, false),
                  .reference = LossesGrad,
                  .error = Error,
                  .input = Input};
  OpRow soft_grad{.op = OpKind::kSoftCrossEntropyGrad,
                  .signatures = Signatures({kF}, {kF}, {}),
                  .cases = Cases(true, true),
                  .reference = LossesGrad,
                  .error = Error,
                  .input = Input};
  return {hard, hard_grad, soft, soft_grad};
}

}  // namespace ampd::testing
