// Graphs as text, for people: one line a node.
#ifndef AMPD_ENGINE_IR_PRINTER_H_
#define AMPD_ENGINE_IR_PRINTER_H_

#include <string>

#include "engine/ir/graph.h"

namespace ampd::ir {

// "f16[32, 28, 28, 1]"
std::string TypeString(const TensorType& type);

// "%conv1.conv2d f16[..] = conv2d(%x:f16, %conv1.weight:f16) {pads=[0, 0, 0, 0]} @conv1"
std::string NodeString(const Graph& graph, const Node& node);

// Inputs, parameters, states, nodes and outputs.
std::string GraphString(const Graph& graph);

}  // namespace ampd::ir

#endif  // AMPD_ENGINE_IR_PRINTER_H_
