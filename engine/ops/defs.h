// The rows that each op's file defines, for registry.cc.
#ifndef AMPD_ENGINE_OPS_DEFS_H_
#define AMPD_ENGINE_OPS_DEFS_H_

#include <vector>

#include "engine/ops/op_def.h"

namespace ampd::ops {

std::vector<OpDef> CastDefs();
std::vector<OpDef> ReshapeDefs();
std::vector<OpDef> AddDefs();
std::vector<OpDef> ReluDefs();
std::vector<OpDef> DropoutDefs();
std::vector<OpDef> MatmulDefs();
std::vector<OpDef> BiasAddDefs();
std::vector<OpDef> Conv2dDefs();
std::vector<OpDef> MaxPool2dDefs();
std::vector<OpDef> AvgPool2dDefs();
std::vector<OpDef> GlobalAvgPoolDefs();
std::vector<OpDef> BatchNormDefs();
std::vector<OpDef> SoftmaxCrossEntropyDefs();
std::vector<OpDef> SquaredErrorDefs();
std::vector<OpDef> ReduceMeanDefs();
std::vector<OpDef> ArgmaxEqualDefs();
std::vector<OpDef> AccumulateGradDefs();

}  // namespace ampd::ops

#endif  // AMPD_ENGINE_OPS_DEFS_H_
