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

RefTensors Embedding(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  RefTensor y = Filled(desc.outputs[0].shape, std::numeric_limits<double>::quiet_NaN());
  const int64_t rows = in[0].shape[0], width = in[0].shape[1];
  for (int64_t i = 0; i < y.size(); ++i) {
    const auto id = static_cast<int64_t>(in[1].data[i / width]);
    if (id >= 0 && id < rows) y.data[i] = in[0].data[id * width + i % width];
  }
  return {y};
}

RefTensor Sums(const NodeDesc& desc, const RefTensors& in, bool magnitudes) {
  RefTensor table = Filled(desc.outputs[0].shape);
  const int64_t rows = table.shape[0], width = table.shape[1];
  for (int64_t i = 0; i < in[0].size(); ++i) {
    const auto id = static_cast<int64_t>(in[1].data[i / width]);
    if (id >= 0 && id < rows)
      table.data[id * width + i % width] += magnitudes ? std::fabs(in[0].data[i]) : in[0].data[i];
  }
  return table;
}

RefTensors OneHot(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  RefTensor y = Filled(desc.outputs[0].shape);
  const int64_t given = desc.attributes.Int("axis", -1), depth = desc.attributes.Int("depth");
  const size_t axis = static_cast<size_t>(given < 0 ? given + static_cast<int64_t>(y.shape.size()) : given);
  for (int64_t i = 0; i < in[0].size(); ++i) {
    const double id = in[0].data[i] < 0 ? in[0].data[i] + static_cast<double>(depth) : in[0].data[i];
    if (id < 0 || id >= static_cast<double>(depth)) continue;
    Shape at = IndexOf(in[0].shape, i);
    at.insert(at.begin() + static_cast<int64_t>(axis), static_cast<int64_t>(id));
    y.data[ElementAt(y.shape, at)] = 1;
  }
  return {y};
}

OpRow OneHotRow() {
  OpRow row{.op = OpKind::kOneHot, .signatures = {{{DType::kI32}, {DType::kF32}}}, .reference = OneHot};
  for (int64_t axis : {-1, 0}) {
    for (const Shape& s : {Shape{}, Shape{7}, Shape{3, 4}, Shape{300, 20}}) {
      row.cases.push_back({{{"depth", int64_t{5}}, {"axis", axis}}, {s}});
    }
  }
  row.cases.push_back({{{"depth", int64_t{1}}}, {{3}}});
  row.input = [](const NodeDesc& desc, int, Random* random) { return SmallIntegers(desc.inputs[0], random, -6, 6); };
  return row;
}

}  // namespace

std::vector<OpRow> EmbeddingRows() {
  OpRow forward{.op = OpKind::kEmbedding, .reference = Embedding};
  OpRow grad{.op = OpKind::kEmbeddingGrad};
  for (DType t : kFloatTypes) {
    forward.signatures.push_back({{t, DType::kI32}, {t}});
    grad.signatures.push_back({{t, DType::kI32}, {t}});
    if (t != DType::kF32) grad.signatures.push_back({{t, DType::kI32}, {DType::kF32}});
  }
  for (const auto& [table, ids] : {std::pair<Shape, Shape>{{5, 3}, {}},
                                   {{5, 3}, {7}},
                                   {{5, 3}, {2, 4}},
                                   {{4, 3}, {6}},
                                   {{1, 1}, {1}},
                                   {{40, 1100}, {9, 8}},
                                   {{3, 33}, {500}}}) {
    forward.cases.push_back({{}, {table, ids}});
    Shape dy = ids;
    dy.push_back(table[1]);
    grad.cases.push_back({{{"rows", table[0]}}, {dy, ids}});
  }
  forward.gradient_cases = {{{}, {{4, 3}, {2, 5}}}};
  // One too far on either side, but for tables of four rows, whose results are finite.
  forward.input = [](const NodeDesc& desc, int i, Random* random) {
    const int64_t rows = desc.inputs[0].shape[0];
    return i == 0 ? RefTensor{} : SmallIntegers(desc.inputs[1], random, rows == 4 ? 0 : -1, rows == 4 ? 3 : rows);
  };
  grad.input = [](const NodeDesc& desc, int i, Random* random) {
    return i == 0 ? RefTensor{} : SmallIntegers(desc.inputs[1], random, -1, desc.attributes.Int("rows"));
  };
  grad.reference = [](const NodeDesc& desc, const RefTensors& in, const StepState&) {
    return RefTensors{Sums(desc, in, false)};
  };
  grad.error = [](const NodeDesc& desc, const RefTensors& in, const RefTensors&) {
    RefTensor bound = Sums(desc, in, true);
    for (double& v : bound.data) v *= Gamma(static_cast<double>(in[1].size()));
    return RefTensors{bound};
  };
  return {forward, grad, OneHotRow()};
}

}  // namespace ampd::testing
