#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/support/op_rows/rows.h"

namespace ampd::testing {
namespace {

using ir::Attributes;
using ir::OpKind;
using runtime::NodeDesc;
using runtime::StepState;

constexpr DType kF = DType::kF32;
constexpr DType kI = DType::kI32;

bool Counts(const NodeDesc& desc, double label, int64_t classes) {
  const auto ignored = static_cast<double>(desc.attributes.Int("ignore_index"));
  return label >= 0 && label < static_cast<double>(classes) &&
         !(desc.attributes.Has("ignore_index") && label == ignored);
}

// Sorts the classes.
RefTensors Hits(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  const int64_t classes = in[0].shape.back();
  RefTensor hits = Filled(in[1].shape);
  for (int64_t r = 0; r < hits.size(); ++r) {
    const double* z = in[0].data.data() + r * classes;
    if (!Counts(desc, in[1].data[r], classes) || std::any_of(z, z + classes, [](double v) { return std::isnan(v); })) {
      continue;
    }
    std::vector<int64_t> order(classes);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return z[a] > z[b]; });
    const auto end = order.begin() + desc.attributes.Int("k", 1);
    hits.data[r] = std::find(order.begin(), end, static_cast<int64_t>(in[1].data[r])) != end;
  }
  return {hits};
}

RefTensors CountLabels(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  RefTensor counts = in[0];
  for (double& v : counts.data) v = Counts(desc, v, desc.attributes.Int("classes"));
  return {counts};
}

double Sum(const RefTensor& t) { return std::accumulate(t.data.begin(), t.data.end(), 0.0); }

RefTensors NormalizedSum(const NodeDesc&, const RefTensors& in, const StepState&) {
  const double weights = Sum(in[1]);
  return {Filled(Shape{}, weights == 0 ? 0 : Sum(in[0]) / weights)};
}

RefTensors NormalizedSumGrad(const NodeDesc&, const RefTensors& in, const StepState&) {
  const double weights = Sum(in[1]);
  return {Filled(in[1].shape, weights == 0 ? 0 : in[0].data[0] / weights)};
}

RefTensor Labels(const NodeDesc& desc, int i, Random* random) {
  if (desc.inputs[i].dtype != kI) return {};
  const int64_t classes = i == 0 ? desc.attributes.Int("classes") : desc.inputs[0].shape.back();
  RefTensor labels = Filled(desc.inputs[i].shape);
  for (double& v : labels.data) v = static_cast<double>(random->Below(classes + 2) - 1);
  return labels;
}

// Not negative; all zero in tensors of one element.
RefTensor Weights(const NodeDesc& desc, int i, Random* random) {
  if (i == 0) return {};
  RefTensor weights = RandomTensor(random, desc.inputs[i].shape, kF, 0, 2);
  if (weights.size() == 1) weights.data[0] = 0;
  return weights;
}

std::vector<OpShapes> HitCases(bool top_k) {
  std::vector<OpShapes> list;
  for (const Shape& s : {Shape{1, 1}, Shape{7, 10}, Shape{3, 1000}, Shape{600, 11}, Shape{4, 5, 6}}) {
    for (int64_t k : {1, 5, 11}) {
      if (k > (top_k ? s.back() : 1)) continue;
      Attributes a;
      if (top_k) a.Set("k", k);
      list.push_back({a, {s, Shape(s.begin(), s.end() - 1)}});
      a.Set("ignore_index", int64_t{0});
      list.push_back({a, {s, Shape(s.begin(), s.end() - 1)}});
    }
  }
  return list;
}

std::vector<OpShapes> SumCases(bool grad) {
  std::vector<OpShapes> list;
  for (const Shape& s : {Shape{1}, Shape{7}, Shape{1000}, Shape{4, 9}}) list.push_back({{}, {grad ? Shape{} : s, s}});
  return list;
}

}  // namespace

std::vector<OpRow> LabelMetricsRows() {
  const Attributes classes{{"classes", int64_t{5}}}, ignoring{{"classes", int64_t{5}}, {"ignore_index", int64_t{2}}};
  return {{.op = OpKind::kArgmaxEqual,
           .signatures = {{{kF, kI}, {kF}}},
           .cases = HitCases(false),
           .reference = Hits,
           .input = Labels},
          {.op = OpKind::kTopKEqual,
           .signatures = {{{kF, kI}, {kF}}},
           .cases = HitCases(true),
           .reference = Hits,
           .input = Labels},
          {.op = OpKind::kLabelCounts,
           .signatures = {{{kI}, {kF}}},
           .cases = {{classes, {{1}}}, {classes, {{40}}}, {ignoring, {{6, 7}}}},
           .reference = CountLabels,
           .input = Labels},
          {.op = OpKind::kNormalizedSum,
           .signatures = {{{kF, kF}, {kF}}},
           .cases = SumCases(false),
           .gradient_cases = {{{}, {{7}, {7}}}, {{}, {{2, 3}, {2, 3}}}, {{}, {{1}, {1}}}},
           .constant_inputs = {1},
           .reference = NormalizedSum,
           // A sum in double, of terms that may cancel.
           .error =
               [](const NodeDesc&, const RefTensors& in, const RefTensors&) {
                 return RefTensors{Filled(Shape{}, 1e-12 * static_cast<double>(in[0].size()))};
               },
           .input = Weights},
          {.op = OpKind::kNormalizedSumGrad,
           .signatures = {{{kF, kF}, {kF}}},
           .cases = SumCases(true),
           .reference = NormalizedSumGrad,
           .error = RelativeError(1),
           .input = Weights}};
}

}  // namespace ampd::testing
