// The op table: what every pass, the builder and the verifier know of an operation. One row an op; one file an op (with
// its gradient ops), which defines the rows that registry.cc lists. Meanings and formulas: docs/ops.md.
#ifndef AMPD_ENGINE_OPS_OP_DEF_H_
#define AMPD_ENGINE_OPS_OP_DEF_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/ir/graph.h"

namespace ampd::ops {

class GradientContext;

// How passes/precision treats an op.
enum class PrecisionClass : uint8_t {
  kAllow,  // computes in the mode's 16-bit type, with fp32 accumulation
  kInfer,  // follows its data inputs
  kDeny,   // computes in fp32
  kFixed,  // its dtypes are what its attributes and inputs say; never touched
};

// What an input is to passes/precision.
enum class Role : uint8_t {
  kData,    // a float; takes the op's compute dtype
  kNumber,  // as kData if it is a float; an integer or bool stays what it is. All numbers of a node have one dtype
  kFloat,   // f32 always: norm scales and statistics
  kWide,    // f32, or f16 or bf16 that is widened as it is read: what large losses read (passes/read_narrow)
  kIndex,   // i32: labels, positions, lengths
  kBool,    // bool: masks and conditions
  kMask,    // bool, or f32 that is added: what attention does to its scores
  kAny,     // any float dtype: gradients to be accumulated
  kState,   // written as an effect (or read) in its own dtype
};

// A use of an op: what its rules look at. Points into its caller's memory.
struct OpCall {
  absl::string_view name;
  const ir::Attributes& attributes;
  const std::vector<ir::TensorType>& inputs;
  // The node, for the ops whose meaning is more than their attributes: kFused and kRegion. Else may be null.
  const ir::Node* node = nullptr;
};

struct OpDef {
  ir::OpKind kind = ir::OpKind::kAdd;
  PrecisionClass precision = PrecisionClass::kFixed;
  std::vector<Role> inputs;
  // Inputs a node may leave out, counted from the end.
  int optional_inputs = 0;
  // The last role holds for one or more inputs, all of one dtype.
  bool variadic = false;
  // By output: appended to the node's name to name the value; the first is usually "".
  std::vector<std::string> output_suffixes;
  // Types of the outputs. INVALID_ARGUMENT as "[op] what is wrong with which shapes, node NAME".
  absl::Status (*infer)(const OpCall& call, std::vector<ir::TensorType>* outputs) = nullptr;
  // Emits the gradient; null: not differentiable. Called when the loss depends on any output through a wanted value.
  void (*gradient)(GradientContext& context) = nullptr;
  // Floating-point operations of one run (a multiply-add is two); null: one an output element.
  double (*flops)(const OpCall& call, const std::vector<ir::TensorType>& outputs) = nullptr;
  // Linear in each of its two data inputs, so that their scales can be taken out: may compute on 8-bit operands, each
  // of either format, and then gives f32.
  bool bilinear = false;
  // Each output element depends on its attributes and on the elements of the inputs at its own place (of an input with
  // fewer elements: the one broadcast there), and the first output has the shape they broadcast to. What passes/fuse
  // joins.
  bool elementwise = false;
  // Writes memory that outlives it; never removed as dead.
  bool has_effects = false;
  // The output is the first input's memory under another shape; no kernel runs.
  bool is_view = false;
};

// The role of input `i` of a use of `def`.
inline Role RoleOf(const OpDef& def, size_t i) { return def.inputs[i < def.inputs.size() ? i : def.inputs.size() - 1]; }

// The row of `kind`; every kind has one.
const OpDef& GetOpDef(ir::OpKind kind);

// Types of the outputs of a use of `kind`: checks the number of inputs and their dtypes by role, then the op's own
// rule.
absl::StatusOr<std::vector<ir::TensorType>> InferTypes(ir::OpKind kind, const OpCall& call);

// Floating-point operations and bytes moved (inputs read once, outputs written once) by one run.
struct Cost {
  double flops = 0;
  double bytes = 0;
};
Cost CostOf(ir::OpKind kind, const OpCall& call, const std::vector<ir::TensorType>& outputs);

// Adds a node after checking it by the op's rule; names its outputs. The returned values are its outputs.
absl::StatusOr<std::vector<ir::ValueId>> Emit(ir::Graph* graph, ir::Node node);

// The value whose numbers `v` has, some or all, moved or cast: behind slices, reshapes, transpositions and casts.
// `v` itself where no such op made it.
ir::ValueId MovedFrom(const ir::Graph& graph, ir::ValueId v);

// Structure and types: ids in range, every value defined before use and once, node names unique, slots valid, and each
// node's output types as its op's rule gives them. INTERNAL, naming the node. Runs after every pass.
absl::Status VerifyGraph(const ir::Graph& graph);

}  // namespace ampd::ops

#endif  // AMPD_ENGINE_OPS_OP_DEF_H_
