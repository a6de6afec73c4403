#include "tests/support/op_rows.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/support/op_rows/rows.h"

namespace ampd::testing {
namespace {

std::vector<OpRow> MakeRows() {
  std::vector<OpRow> all;
  static constexpr std::vector<OpRow> (*kFiles[])() = {
#define X(name) name##Rows,
#include "tests/support/op_rows/row_files.def"
#undef X
  };
  for (auto* rows : kFiles) {
    for (OpRow& row : rows()) all.push_back(std::move(row));
  }
  return all;
}

RefTensor DrawDefault(const ir::TensorType& type, Random* random) {
  if (type.dtype != DType::kBool) return RandomTensor(random, type.shape, type.dtype, -3, 3);
  RefTensor bools = Filled(type.shape);
  for (double& v : bools.data) v = static_cast<double>(random->Below(2));
  return bools;
}

}  // namespace

const std::vector<OpRow>& AllOpRows() {
  static const auto& rows = *new std::vector<OpRow>(MakeRows());
  return rows;
}

const OpRow* FindOpRow(ir::OpKind op) {
  for (const OpRow& row : AllOpRows()) {
    if (row.op == op) return &row;
  }
  return nullptr;
}

double Gamma(double n) { return n * kF32Roundoff / (1 - n * kF32Roundoff); }

double RoundTf32(double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  const double ulp = std::ldexp(1.0, std::max(std::ilogb(x), -126) - 10);
  return std::nearbyint(x / ulp) * ulp;
}

std::function<RefTensors(const runtime::NodeDesc&, const RefTensors&, const RefTensors&)> RelativeError(
    double roundings) {
  return [roundings](const runtime::NodeDesc&, const RefTensors&, const RefTensors& outputs) {
    RefTensors errors = outputs;
    for (RefTensor& error : errors) {
      for (double& v : error.data) v = std::fabs(v) * Gamma(roundings);
    }
    return errors;
  };
}

RefTensors DrawInputs(const OpRow& row, const runtime::NodeDesc& desc, Random* random) {
  RefTensors inputs;
  for (size_t i = 0; i < desc.inputs.size(); ++i) {
    RefTensor drawn;
    if (row.input) drawn = row.input(desc, static_cast<int>(i), random);
    if (drawn.data.empty()) drawn = DrawDefault(desc.inputs[i], random);
    inputs.push_back(std::move(drawn));
  }
  if (row.adjust_inputs) row.adjust_inputs(desc, &inputs);
  return inputs;
}

}  // namespace ampd::testing
