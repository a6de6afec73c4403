#include <iterator>
#include <utility>
#include <vector>

#include "engine/ops/defs.h"
#include "engine/ops/op_def.h"

namespace ampd::ops {
namespace {

std::vector<OpDef> MakeTable() {
  std::vector<OpDef> table(std::size(ir::kAllOpKinds));
  for (auto* defs : {CastDefs, ReshapeDefs, AddDefs, ReluDefs, DropoutDefs, MatmulDefs, BiasAddDefs, Conv2dDefs,
                     MaxPool2dDefs, AvgPool2dDefs, GlobalAvgPoolDefs, BatchNormDefs, SoftmaxCrossEntropyDefs,
                     SquaredErrorDefs, ReduceMeanDefs, ArgmaxEqualDefs, AccumulateGradDefs}) {
    for (OpDef& def : defs()) table[static_cast<size_t>(def.kind)] = std::move(def);
  }
  return table;
}

}  // namespace

const OpDef& GetOpDef(ir::OpKind kind) {
  static const auto& table = *new std::vector<OpDef>(MakeTable());
  return table[static_cast<size_t>(kind)];
}

}  // namespace ampd::ops
