// A graph made ready to run: kernels chosen, memory planned. The executor sees only this, never a graph.
#ifndef AMPD_ENGINE_RUNTIME_PLAN_H_
#define AMPD_ENGINE_RUNTIME_PLAN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/ir/graph.h"
#include "engine/ops/op_def.h"
#include "engine/runtime/backend.h"
#include "engine/runtime/kernel_table.h"
#include "engine/runtime/model_memory.h"

namespace ampd::runtime {

// Which memory an offset counts in.
enum class Space : uint8_t {
  kArena,   // one step's activations and workspace
  kMaster,  // ModelMemory, as the next four
  kGradient,
  kPublished,
  kState,  // committed
  kPendingState,
  kInput,     // the executor's; offset is the input's index in Plan::inputs
  kConstant,  // offset is the index in Plan::constants
  kLossSeed,  // StepState::loss_seed
};

struct PlannedTensor {
  std::string name;
  ir::TensorType type;
  Space space = Space::kArena;
  int64_t offset = 0;  // bytes
};

int64_t BytesOf(const PlannedTensor& tensor);

struct PlanStep {
  std::string name;
  std::string layer;
  ir::OpKind op = ir::OpKind::kAdd;
  ir::Stage stage = ir::Stage::kForward;
  std::vector<PlannedTensor> inputs;
  std::vector<PlannedTensor> outputs;
  std::unique_ptr<Kernel> kernel;
  int64_t workspace_offset = 0;  // bytes within the arena
  ops::Cost cost;                // of one run
  ir::Attributes attributes;
  // Of a fused step or a region: what it does, in order, and by output which of that it is the result of.
  std::vector<ir::FusedStep> fused;
  std::vector<int32_t> fused_results;
};

struct Plan {
  std::vector<PlanStep> steps;
  std::vector<PlannedTensor> inputs;
  std::vector<std::shared_ptr<const Tensor>> constants;  // on the host; null: zeros
  // What inputs and constants take where the backend's memory is not the host's, each tensor aligned.
  int64_t input_bytes = 0;
  int64_t constant_bytes = 0;
  // "loss", "losses", "correct": usually in the arena, valid until the next run. One that is an input, a constant or a
  // parameter of the graph, or a view of one, shows that memory.
  std::map<std::string, PlannedTensor> outputs;
  // Parameters in the order of their first accumulate_grad, which is the backward pass'; what is made in place is there
  // a little earlier.
  std::vector<int32_t> gradient_order;
  // Whether a run writes those gradients, whatever they were, rather than adding to them: such a plan runs once an
  // update, which need not begin with gradients of zero.
  bool overwrites_gradients = false;
  int64_t arena_bytes = 0;
  // What the arena would hold without the workspace of kernels: the tensors that steps hand to each other.
  int64_t activation_bytes = 0;
};

// Chooses kernels for every node of `graph`, adds the published copies they read to `layout`, and lays out the arena so
// that no two tensors alive at once overlap. A gradient in f32 that overwrites its slot, and that nobody else reads, is
// written there by whoever makes it, and its accumulate_grad is no step. UNIMPLEMENTED names the node that has no
// kernel.
absl::StatusOr<Plan> MakePlan(const ir::Graph& graph, const Backend& backend, int threads, ModelLayout* layout);

}  // namespace ampd::runtime

#endif  // AMPD_ENGINE_RUNTIME_PLAN_H_
