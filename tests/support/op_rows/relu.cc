#include <cmath>

#include "tests/support/op_rows/rows.h"

namespace ampd::testing {
namespace {

using ir::OpKind;
using runtime::KernelTable;
using runtime::NodeDesc;
using runtime::StepState;

RefTensors Relu(const NodeDesc&, const RefTensors& in, const StepState&) {
  RefTensor y = in[0];
  for (double& v : y.data) v = v > 0 || std::isnan(v) ? v : 0;
  return {y};
}

// Of the output's sign, as the kernel sees it.
RefTensors ReluGrad(const NodeDesc&, const RefTensors& in, const StepState&) {
  RefTensor dx = in[0];
  for (int64_t i = 0; i < dx.size(); ++i) {
    const double y = in[1].data[i];
    dx.data[i] = y > 0 || std::isnan(y) ? in[0].data[i] : 0;
  }
  return {dx};
}

std::vector<KernelTable::Signature> Signatures(size_t inputs) {
  std::vector<KernelTable::Signature> list;
  for (DType t : {DType::kF32, DType::kF16, DType::kBF16}) list.push_back({std::vector<DType>(inputs, t), {t}});
  return list;
}

std::vector<OpShapes> Cases(size_t inputs) {
  std::vector<OpShapes> list;
  for (const Shape& s : {Shape{1}, Shape{3, 5}, Shape{2, 3, 5, 7}, Shape{1025}, Shape{50, 1500}}) {
    list.push_back({{}, std::vector<Shape>(inputs, s)});
  }
  return list;
}

}  // namespace

std::vector<OpRow> ReluRows() {
  return {{.op = OpKind::kRelu,
           .signatures = Signatures(1),
           .cases = Cases(1),
           .gradient_cases = {{{}, {{4, 5}}}},
           .reference = Relu},
          {.op = OpKind::kReluGrad, .signatures = Signatures(2), .cases = Cases(2), .reference = ReluGrad}};
}

}  // namespace ampd::testing
