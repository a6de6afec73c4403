#include <algorithm>

#include "tests/support/op_rows/helpers.h"
#include "tests/support/op_rows/rows.h"

namespace ampd::testing {
namespace {

using ir::Attributes;
using ir::OpKind;
using runtime::NodeDesc;
using runtime::StepState;
using Ints = std::vector<int64_t>;

RefTensor Integers(const NodeDesc& desc, int i, Random* random) { return SmallIntegers(desc.inputs[i], random); }

OpRow MovementRow(OpKind op, decltype(OpRow::reference) reference) {
  return {.op = op, .signatures = SameSignatures(kEveryType, 1), .reference = std::move(reference), .input = Integers};
}

RefTensors Transpose(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  const Ints perm = desc.attributes.Ints("perm");
  RefTensor y = Filled(desc.outputs[0].shape);
  for (int64_t i = 0; i < y.size(); ++i) {
    const Shape at = IndexOf(y.shape, i);
    Shape from(at.size(), 0);
    for (size_t d = 0; d < at.size(); ++d) from[perm[d]] = at[d];
    y.data[i] = in[0].data[ElementAt(in[0].shape, from)];
  }
  return {y};
}

OpRow TransposeRow() {
  OpRow row = MovementRow(OpKind::kTranspose, Transpose);
  const std::vector<std::pair<Shape, Ints>> cases = {{{}, {}},
                                                     {{5}, {0}},
                                                     {{3, 5}, {1, 0}},
                                                     {{3, 5}, {0, 1}},
                                                     {{2, 3, 5}, {0, 2, 1}},
                                                     {{2, 3, 5}, {1, 0, 2}},
                                                     {{2, 3, 5}, {2, 1, 0}},
                                                     {{2, 3, 5, 7}, {0, 3, 1, 2}},
                                                     {{2, 3, 5, 7}, {3, 2, 1, 0}},
                                                     {{2, 3, 5, 7}, {2, 0, 3, 1}},
                                                     {{1, 7, 1}, {2, 1, 0}},
                                                     {{257, 300}, {1, 0}},
                                                     {{3, 150, 170}, {0, 2, 1}},
                                                     {{2, 3, 2, 3, 2, 3, 2}, {6, 4, 2, 0, 1, 3, 5}}};
  for (const auto& [shape, perm] : cases) row.cases.push_back({{{"perm", perm}}, {shape}});
  row.gradient_cases = {{{{"perm", Ints{2, 0, 1}}}, {{2, 3, 4}}}, {{{"perm", Ints{1, 0}}}, {{2, 3}}}};
  return row;
}

Attributes Cut(const Ints& starts, const Ints& ends, const Ints& steps) {
  return {{"starts", starts}, {"ends", ends}, {"steps", steps}};
}

std::vector<OpShapes> Slices() {
  return {{Cut({}, {}, {}), {{}}},
          {Cut({2}, {7}, {1}), {{9}}},
          {Cut({8}, {-1}, {-1}), {{9}}},
          {Cut({7}, {0}, {-3}), {{9}}},
          {Cut({0, 1}, {3, 4}, {2, 1}), {{3, 5}}},
          {Cut({0, 4}, {3, 0}, {1, -2}), {{3, 5}}},
          {Cut({1, 0, 2, 0}, {2, 3, 5, 7}, {1, 1, 1, 3}), {{2, 3, 5, 7}}},
          {Cut({3, 0}, {299, 257}, {1, 1}), {{300, 257}}},
          {Cut({0, 3}, {300, 256}, {1, 1}), {{300, 257}}},
          {Cut({0}, {2}, {int64_t{1} << 62}), {{9}}}};
}

int64_t SliceElement(const NodeDesc& desc, const Shape& whole, const Shape& part, int64_t i) {
  const Ints starts = desc.attributes.Ints("starts"), steps = desc.attributes.Ints("steps");
  Shape at = IndexOf(part, i);
  for (size_t d = 0; d < at.size(); ++d) at[d] = starts[d] + at[d] * steps[d];
  return ElementAt(whole, at);
}

RefTensors Slice(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  RefTensor y = Filled(desc.outputs[0].shape);
  for (int64_t i = 0; i < y.size(); ++i) y.data[i] = in[0].data[SliceElement(desc, in[0].shape, y.shape, i)];
  return {y};
}

RefTensors SliceGrad(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  RefTensor dx = Filled(desc.outputs[0].shape);
  for (int64_t i = 0; i < in[0].size(); ++i) dx.data[SliceElement(desc, dx.shape, in[0].shape, i)] = in[0].data[i];
  return {dx};
}

std::vector<OpRow> SliceRows() {
  OpRow forward = MovementRow(OpKind::kSlice, Slice);
  OpRow grad = MovementRow(OpKind::kSliceGrad, SliceGrad);
  grad.signatures = SameSignatures(kFloatTypes, 1);
  forward.cases = Slices();
  forward.gradient_cases = {{Cut({0, 3}, {2, 0}, {1, -1}), {{2, 4}}}, {Cut({1}, {8}, {3}), {{8}}}};
  for (const OpShapes& shapes : Slices()) {
    const Ints starts = shapes.attributes.Ints("starts"), ends = shapes.attributes.Ints("ends"),
               steps = shapes.attributes.Ints("steps");
    Shape part;
    for (size_t d = 0; d < starts.size(); ++d) {
      int64_t n = 0;
      for (int64_t at = starts[d]; steps[d] > 0 ? at < ends[d] : at > ends[d]; at += steps[d]) ++n;
      part.push_back(n);
    }
    Attributes attributes = shapes.attributes;
    attributes.Set("shape", Ints(shapes.inputs[0].begin(), shapes.inputs[0].end()));
    grad.cases.push_back({attributes, {part}});
  }
  return {forward, grad};
}

RefTensors Concat(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  RefTensor y = Filled(desc.outputs[0].shape);
  const int64_t given = desc.attributes.Int("axis");
  const size_t axis = static_cast<size_t>(given < 0 ? given + static_cast<int64_t>(y.shape.size()) : given);
  int64_t first = 0;
  for (const RefTensor& x : in) {
    for (int64_t i = 0; i < x.size(); ++i) {
      Shape at = IndexOf(x.shape, i);
      at[axis] += first;
      y.data[ElementAt(y.shape, at)] = x.data[i];
    }
    first += x.shape[axis];
  }
  return {y};
}

OpRow ConcatRow() {
  OpRow row = MovementRow(OpKind::kConcat, Concat);
  const auto axis = [](int64_t a) { return Attributes{{"axis", a}}; };
  row.cases = {{axis(0), {{3}}},
               {axis(0), {{3}, {1}, {5}}},
               {axis(1), {{3, 2}, {3, 5}}},
               {axis(0), {{3, 2}, {4, 2}}},
               {axis(-1), {{2, 3, 4}, {2, 3, 1}, {2, 3, 7}}},
               {axis(1), {{2, 3, 4}, {2, 1, 4}}},
               {axis(1), {{300, 100}, {300, 157}}}};
  row.gradient_cases = {{axis(1), {{2, 3}, {2, 1}, {2, 2}}}, {axis(0), {{1, 3}, {2, 3}}}};
  return row;
}

}  // namespace

std::vector<OpRow> MovementRows() {
  std::vector<OpRow> rows = SliceRows();
  rows.push_back(TransposeRow());
  rows.push_back(ConcatRow());
  return rows;
}

}  // namespace ampd::testing
