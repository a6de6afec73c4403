#include <cmath>

#include "engine/core/rng.h"
#include "tests/support/op_rows/rows.h"

namespace ampd::testing {
namespace {

using ir::OpKind;
using runtime::NodeDesc;
using runtime::StepState;

// Draw `element` of sample `row` of the batch, in [0, 1), by the definition.
double Draw(const NodeDesc& desc, const StepState& step, int64_t row, int64_t element) {
  const auto stream = static_cast<uint32_t>(desc.attributes.Int("stream"));
  const PhiloxBlock counter = RngCounter(step.attempted_step, step.first_sample + static_cast<uint32_t>(row),
                                         static_cast<uint64_t>(element), stream);
  const uint32_t word = Philox4x32(counter, step.seed)[static_cast<size_t>(element % 4)];
  return std::floor(word / 256.0) / 16777216.0;
}

RefTensors Reference(const NodeDesc& desc, const RefTensors&, const StepState& step) {
  RefTensor y = Filled(desc.outputs[0].shape, 0);
  const int64_t size = y.size() / y.shape[0];
  for (int64_t i = 0; i < y.size(); ++i) {
    const int64_t row = i / size, e = i % size;
    y.data[static_cast<size_t>(i)] = desc.op == OpKind::kRandomUniform
                                         ? 2 * Draw(desc, step, row, e) - 1
                                         : std::sqrt(-2 * std::log(1 - Draw(desc, step, row, 2 * e))) *
                                               std::cos(2 * std::acos(-1.0) * Draw(desc, step, row, 2 * e + 1));
  }
  return {y};
}

OpRow RandomRow(OpKind op) {
  OpRow row{.op = op, .signatures = {{{}, {DType::kF32}}}, .reference = Reference};
  using Ints = std::vector<int64_t>;
  for (const Ints& shape : {Ints{1}, Ints{5}, Ints{3, 1}, Ints{4, 7}, Ints{2, 3, 5, 7}, Ints{300, 129}}) {
    row.cases.push_back({{{"shape", shape}, {"stream", int64_t{0x8badf00d}}}, {}});
  }
  // sqrt, log and cos in double: far below float's own rounding.
  row.error = RelativeError(1);
  return row;
}

}  // namespace

std::vector<OpRow> RandomRows() { return {RandomRow(OpKind::kRandomNormal), RandomRow(OpKind::kRandomUniform)}; }

}  // namespace ampd::testing
