// What an op's gradient rule sees and does. autodiff implements it; rules use it.
#ifndef AMPD_ENGINE_OPS_GRADIENT_CONTEXT_H_
#define AMPD_ENGINE_OPS_GRADIENT_CONTEXT_H_

#include <string>
#include <vector>

#include "engine/ir/graph.h"

namespace ampd::ops {

// Lives for one node of one reverse walk. A failed Emit is remembered and reported by the walk; its results are -1.
class GradientContext {
 public:
  virtual ~GradientContext() = default;

  virtual const ir::Graph& graph() const = 0;
  // The forward node.
  virtual const ir::Node& node() const = 0;
  // The gradient of output `i`, or -1 when the loss does not depend on it.
  virtual ir::ValueId output_grad(int i) const = 0;
  // Whether a gradient of input `i` is wanted.
  virtual bool needs_grad(int i) const = 0;
  // Adds a node named "<node>.<suffix>" and returns its outputs.
  virtual std::vector<ir::ValueId> Emit(ir::OpKind op, std::vector<ir::ValueId> inputs, ir::Attributes attributes,
                                        const std::string& suffix) = 0;
  // A constant of zeros: for an output whose gradient an op wants although the loss does not depend on it.
  virtual ir::ValueId Zeros(const ir::TensorType& type) = 0;
  // Ends the walk with INVALID_ARGUMENT: a gradient of input `i` is wanted, which the op has not.
  virtual void RefuseInput(int i) = 0;
  // Adds a contribution to the gradient of input `i`.
  virtual void AddInputGrad(int i, ir::ValueId gradient) = 0;

  ir::ValueId input(int i) const { return node().inputs[i]; }
  ir::ValueId output(int i) const { return node().outputs[i]; }
  const ir::TensorType& input_type(int i) const { return graph().type(input(i)); }
};

}  // namespace ampd::ops

#endif  // AMPD_ENGINE_OPS_GRADIENT_CONTEXT_H_
