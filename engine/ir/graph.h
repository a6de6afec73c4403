// The intermediate representation: static shapes, values in single assignment, nodes in execution order.
#ifndef AMPD_ENGINE_IR_GRAPH_H_
#define AMPD_ENGINE_IR_GRAPH_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/core/dtype.h"
#include "engine/core/shape.h"
#include "engine/core/tensor.h"
#include "engine/ir/attributes.h"
#include "engine/ir/op_kind.h"

namespace ampd::ir {

// Index into Graph::values, Graph::nodes, Graph::parameters, Graph::states. -1 is none.
using ValueId = int32_t;
using NodeId = int32_t;

enum class ValueKind : uint8_t {
  kInput,       // bound from outside: the batch
  kParameter,   // an fp32 master
  kPublished,   // a copy of a parameter in another dtype, written once per applied step
  kState,       // persistent, not trained: batch-norm running statistics
  kConstant,    // numbers that never change, e.g. an imported graph's
  kLossSeed,    // f32 scalar: the gradient of the loss: loss scale * share of the micro-batch
  kActivation,  // written by a node
};

// Which part of the step a node belongs to; named by overflow events.
enum class Stage : uint8_t { kInput, kForward, kLoss, kGradient };

struct TensorType {
  DType dtype = DType::kF32;
  Shape shape;
  bool operator==(const TensorType& o) const { return dtype == o.dtype && shape == o.shape; }
};

struct Value {
  std::string name;
  TensorType type;
  ValueKind kind = ValueKind::kActivation;
  NodeId producer = -1;                // for kActivation
  int32_t slot = -1;                   // for kParameter and kPublished into parameters; for kState into states
  std::shared_ptr<const Tensor> data;  // for kConstant, of `type`, null: zeros; shared by copies of the graph
};

// One operation inside a fused node or a region, with one result, which need not reach memory. Elementwise, on values
// of the node's shape; only a region's first step is a product.
struct FusedStep {
  OpKind op = OpKind::kAdd;
  Attributes attributes;
  // Below the node's number of inputs: that input; else the result of step `operand - inputs`, which is an earlier one.
  std::vector<int32_t> operands;
  // Of the result. Float results stay f32 between the steps of a fused node, except behind a cast, which rounds; in a
  // region they may.
  DType dtype = DType::kF32;
  bool operator==(const FusedStep&) const = default;
};

struct Node {
  OpKind op = OpKind::kAdd;
  // Unique, e.g. "conv1.conv2d". Random streams are named after it, so no pass changes it.
  std::string name;
  // The layer of the model it came from, e.g. "conv1": what precision rules match.
  std::string layer;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  Attributes attributes;
  Stage stage = Stage::kForward;
  // kFused and kRegion alone: the steps in order, and by output which step it is the result of.
  std::vector<FusedStep> steps;
  std::vector<int32_t> results;
};

// How a tensor is drawn before the first step, from a stream named after it.
struct Initializer {
  enum class Kind { kZeros, kOnes, kUniform, kNormal };
  Kind kind = Kind::kZeros;
  double bound = 0;  // kUniform: in [-bound, bound); kNormal: the standard deviation, around 0; kOnes: 2^bound
};

// How a tensor in memory relates to PyTorch's on disk.
enum class DiskLayout : uint8_t {
  kSame,          // as in memory
  kConvFilter,    // memory [out, kernel_h, kernel_w, in], disk [out, in, kernel_h, kernel_w]
  kChannelsLast,  // the last axis is a flattened (h, w, c) in memory and (c, h, w) on disk; `flattened` is {h, w, c}
};

struct Persistent {
  std::string name;  // PyTorch's, e.g. "conv1.weight", "bn1.running_mean"
  TensorType type;
  Initializer init;
  DiskLayout layout = DiskLayout::kSame;
  Shape flattened;
  // Of states: false for what only a resumed training needs, which stays out of the file that PyTorch reads.
  bool in_model_file = true;
};

// Plain data, copied by passes. Not thread-safe while it changes.
struct Graph {
  std::vector<Value> values;
  std::vector<Node> nodes;             // in execution order
  std::vector<Persistent> parameters;  // f32
  std::vector<Persistent> states;
  // Values read from outside after a run: "loss" (f32 scalar), "losses" (f32 [batch]), "correct" (f32 [batch]).
  std::map<std::string, ValueId> outputs;

  ValueId AddInput(std::string name, TensorType type);
  ValueId AddParameter(Persistent parameter);
  ValueId AddState(Persistent state);
  // `data` is not null.
  ValueId AddConstant(std::string name, std::shared_ptr<const Tensor> data);
  // f32 scalar, at most one a graph.
  ValueId AddLossSeed();
  // A new activation; AddNode gives it its producer.
  ValueId AddValue(std::string name, TensorType type);
  NodeId AddNode(Node node);

  const TensorType& type(ValueId v) const { return values[v].type; }
  // The value of kind kInput named `name`, or -1.
  ValueId FindInput(absl::string_view name) const;
  // Sets every value's producer anew from `nodes`, after nodes were removed or reordered.
  void RefreshProducers();
};

}  // namespace ampd::ir

#endif  // AMPD_ENGINE_IR_GRAPH_H_
