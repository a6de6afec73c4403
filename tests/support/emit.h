// One node of a graph made by hand, as tests of passes write them.
#ifndef AMPD_TESTS_SUPPORT_EMIT_H_
#define AMPD_TESTS_SUPPORT_EMIT_H_

#include <string>
#include <vector>

#include "engine/ir/graph.h"
#include "engine/ops/op_def.h"
#include "gtest/gtest.h"

namespace ampd::testing {

// Appends `op`, named "<layer>.<op>", and returns its first output. The test fails where the op refuses its inputs.
inline ir::ValueId Emit(ir::Graph* g, ir::OpKind op, const std::string& layer, const std::vector<ir::ValueId>& inputs,
                        const ir::Attributes& attributes = {}) {
  const auto outputs = ops::Emit(g, {.op = op,
                                     .name = layer + "." + std::string(ir::OpName(op)),
                                     .layer = layer,
                                     .inputs = inputs,
                                     .attributes = attributes});
  EXPECT_TRUE(outputs.ok()) << outputs.status();
  return outputs.ok() ? (*outputs)[0] : -1;
}

}  // namespace ampd::testing

#endif  // AMPD_TESTS_SUPPORT_EMIT_H_
