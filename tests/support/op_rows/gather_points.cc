#include <cmath>
#include <limits>

#include "tests/support/op_rows/helpers.h"
#include "tests/support/op_rows/rows.h"

namespace ampd::testing {
namespace {

using ir::Attributes;
using ir::OpKind;
using runtime::NodeDesc;
using runtime::StepState;
using Ints = std::vector<int64_t>;

bool IsNd(const NodeDesc& desc) { return desc.op == OpKind::kGatherNd || desc.op == OpKind::kGatherNdGrad; }

// `index` counted from the front, or -1.
int64_t Inside(double index, int64_t extent) {
  if (index < 0) index += static_cast<double>(extent);
  return index >= 0 && index < static_cast<double>(extent) ? static_cast<int64_t>(index) : -1;
}

int64_t ElementSource(const NodeDesc& desc, const Shape& data, const RefTensor& indices, int64_t i) {
  const int64_t given = desc.attributes.Int("axis");
  const size_t axis = static_cast<size_t>(given < 0 ? given + static_cast<int64_t>(data.size()) : given);
  Shape at = IndexOf(indices.shape, i);
  at[axis] = Inside(indices.data[i], data[axis]);
  return at[axis] < 0 ? -1 : ElementAt(data, at);
}

int64_t NdSource(const NodeDesc& desc, const Shape& data, const RefTensor& indices, const Shape& output, int64_t i) {
  const auto batch = static_cast<size_t>(desc.attributes.Int("batch_dims"));
  const auto picks = indices.shape.size() - 1, axes = static_cast<size_t>(indices.shape.back());
  const Shape at = IndexOf(output, i);
  Shape tuple(at.begin(), at.begin() + picks), from(at.begin(), at.begin() + batch);
  tuple.push_back(0);
  for (size_t k = 0; k < axes; ++k) {
    tuple.back() = static_cast<int64_t>(k);
    from.push_back(Inside(indices.data[ElementAt(indices.shape, tuple)], data[batch + k]));
    if (from.back() < 0) return -1;
  }
  from.insert(from.end(), at.begin() + picks, at.end());
  return ElementAt(data, from);
}

int64_t Source(const NodeDesc& desc, const Shape& data, const RefTensor& indices, const Shape& output, int64_t i) {
  return IsNd(desc) ? NdSource(desc, data, indices, output, i) : ElementSource(desc, data, indices, i);
}

RefTensors Gather(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  RefTensor y = Filled(desc.outputs[0].shape);
  const double missing = IsFloat(desc.outputs[0].dtype) ? std::numeric_limits<double>::quiet_NaN() : 0;
  for (int64_t i = 0; i < y.size(); ++i) {
    const int64_t from = Source(desc, in[0].shape, in[1], y.shape, i);
    y.data[i] = from < 0 ? missing : in[0].data[from];
  }
  return {y};
}

RefTensor Scatter(const NodeDesc& desc, const RefTensors& in, bool magnitudes) {
  RefTensor dx = Filled(desc.outputs[0].shape);
  for (int64_t i = 0; i < in[0].size(); ++i) {
    const int64_t to = Source(desc, dx.shape, in[1], in[0].shape, i);
    if (to >= 0) dx.data[to] += magnitudes ? std::fabs(in[0].data[i]) : in[0].data[i];
  }
  return dx;
}

struct Case {
  OpKind op;
  Shape data, indices, output;
  const char* attribute;
  int64_t value;
};

std::vector<Case> Cases() {
  const OpKind e = OpKind::kGatherElements, n = OpKind::kGatherNd;
  return {{e, {5}, {7}, {7}, "axis", 0},
          {e, {3, 5}, {2, 5}, {2, 5}, "axis", 1},
          {e, {3, 5}, {9, 4}, {9, 4}, "axis", 0},
          {e, {3, 5}, {3, 2}, {3, 2}, "axis", -1},
          {e, {2, 3, 5}, {2, 4, 5}, {2, 4, 5}, "axis", 1},
          {e, {1, 1}, {1, 1}, {1, 1}, "axis", 0},
          {e, {300, 70}, {300, 70}, {300, 70}, "axis", 1},
          {n, {5}, {7, 1}, {7}, "batch_dims", 0},
          {n, {3, 5}, {4, 2}, {4}, "batch_dims", 0},
          {n, {3, 5}, {4, 1}, {4, 5}, "batch_dims", 0},
          {n, {3, 5, 4}, {3, 6, 1}, {3, 6, 4}, "batch_dims", 1},
          {n, {3, 5, 4}, {3, 2}, {3}, "batch_dims", 1},
          {n, {1}, {1}, {}, "batch_dims", 0},
          {n, {2, 3, 1500}, {2, 7, 1}, {2, 7, 1500}, "batch_dims", 1}};
}

// Of either sign, and now and then one too far; inside for the gradient check, whose data have twelve elements.
RefTensor Indices(const NodeDesc& desc, const Shape& data, Random* random) {
  const Shape& shape = desc.inputs[1].shape;
  const auto first = static_cast<size_t>(IsNd(desc) ? desc.attributes.Int("batch_dims") : desc.attributes.Int("axis"));
  const int64_t far = NumElements(data) == 12 ? 0 : 1;
  RefTensor indices = Filled(shape);
  for (int64_t i = 0; i < indices.size(); ++i) {
    const size_t axis = desc.attributes.Int("axis") < 0 ? data.size() - 1
                        : IsNd(desc)                    ? first + static_cast<size_t>(i % shape.back())
                                                        : first;
    const int64_t extent = data[axis];
    indices.data[i] = static_cast<double>(random->Below(2 * extent + 2 * far) - extent - far);
  }
  return indices;
}

}  // namespace

std::vector<OpRow> GatherPointsRows() {
  OpRow elements{.op = OpKind::kGatherElements, .reference = Gather}, nd{.op = OpKind::kGatherNd, .reference = Gather};
  OpRow elements_grad{.op = OpKind::kGatherElementsGrad}, nd_grad{.op = OpKind::kGatherNdGrad};
  for (const Case& c : Cases()) {
    const bool is_nd = c.op == OpKind::kGatherNd;
    const Ints shape(c.data.begin(), c.data.end());
    (is_nd ? nd : elements).cases.push_back({{{c.attribute, c.value}}, {c.data, c.indices}});
    (is_nd ? nd_grad : elements_grad)
        .cases.push_back({{{c.attribute, c.value}, {"shape", shape}}, {c.output, c.indices}});
  }
  elements.gradient_cases = {{{{"axis", int64_t{1}}}, {{4, 3}, {2, 5}}}, {{{"axis", int64_t{0}}}, {{4, 3}, {5, 3}}}};
  nd.gradient_cases = {{{}, {{4, 3}, {5, 2}}}, {{{"batch_dims", int64_t{1}}}, {{2, 3, 2}, {2, 4, 1}}}};
  for (OpRow* row : {&elements, &nd}) {
    for (DType t : kEveryType) row->signatures.push_back({{t, DType::kI32}, {t}});
    row->input = [](const NodeDesc& desc, int i, Random* random) {
      return i == 0 ? SmallIntegers(desc.inputs[0], random) : Indices(desc, desc.inputs[0].shape, random);
    };
  }
  for (OpRow* row : {&elements_grad, &nd_grad}) {
    for (DType t : kFloatTypes) row->signatures.push_back({{t, DType::kI32}, {t}});
    row->input = [](const NodeDesc& desc, int i, Random* random) {
      return i == 0 ? RefTensor{} : Indices(desc, desc.outputs[0].shape, random);
    };
    row->reference = [](const NodeDesc& desc, const RefTensors& in, const StepState&) {
      return RefTensors{Scatter(desc, in, false)};
    };
    row->error = [](const NodeDesc& desc, const RefTensors& in, const RefTensors&) {
      RefTensor bound = Scatter(desc, in, true);
      for (double& v : bound.data) v *= Gamma(static_cast<double>(in[1].size()));
      return RefTensors{bound};
    };
  }
  return {elements, elements_grad, nd, nd_grad};
}

}  // namespace ampd::testing
