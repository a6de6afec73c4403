#include "engine/runtime/plan.h"

#include <algorithm>
#include <utility>

#include "engine/core/status.h"
#include "engine/ops/op_def.h"
#include "engine/passes/memory_plan.h"

namespace ampd::runtime {
namespace {

class Planner {
 public:
  Planner(const ir::Graph& graph, const Backend& backend, int threads, ModelLayout* layout)
      : graph_(graph), backend_(backend), threads_(threads), layout_(layout) {}

  absl::StatusOr<Plan> Run() {
    AMPD_RETURN_IF_ERROR(layout_->Check(graph_));
    FindRoots();
    FindGradients();
    AMPD_RETURN_IF_ERROR(CheckOutputs());
    AMPD_RETURN_IF_ERROR(ListInputs());
    for (const ir::Node& node : graph_.nodes) {
      if (node.op == ir::OpKind::kAccumulateGrad) NoteGradient(node);
      if (!ops::GetOpDef(node.op).is_view && !IsInPlace(node)) AMPD_RETURN_IF_ERROR(AddStep(node));
    }
    plan_.overwrites_gradients = !plan_.gradient_order.empty() && overwrites_all_;
    LayOut();
    return std::move(plan_);
  }

 private:
  // A view's root is the value whose memory it shows.
  void FindRoots() {
    for (size_t v = 0; v < graph_.values.size(); ++v) roots_.push_back(static_cast<ir::ValueId>(v));
    for (const ir::Node& node : graph_.nodes) {
      if (ops::GetOpDef(node.op).is_view) roots_[node.outputs[0]] = roots_[node.inputs[0]];
    }
  }

  // Which values are made in the slot of the gradient that they overwrite.
  void FindGradients() {
    std::map<ir::ValueId, int> reads;
    for (const ir::Node& node : graph_.nodes) {
      if (ops::GetOpDef(node.op).is_view) continue;
      for (ir::ValueId v : node.inputs) ++reads[roots_[v]];
    }
    for (const auto& [name, v] : graph_.outputs) ++reads[roots_[v]];
    for (const ir::Node& node : graph_.nodes) {
      if (node.op != ir::OpKind::kAccumulateGrad || !node.attributes.Bool("overwrite")) continue;
      const ir::ValueId root = roots_[node.inputs[0]];
      const ir::Value& value = graph_.values[root];
      const bool own = value.kind == ir::ValueKind::kActivation && reads[root] == 1;
      if (own && value.type.dtype == DType::kF32) in_place_[root] = graph_.values[node.inputs[1]].slot;
    }
  }

  bool IsInPlace(const ir::Node& node) const {
    return node.op == ir::OpKind::kAccumulateGrad && in_place_.count(roots_[node.inputs[0]]) > 0;
  }

  void NoteGradient(const ir::Node& node) {
    const int32_t parameter = graph_.values[node.inputs[1]].slot;
    std::vector<int32_t>& order = plan_.gradient_order;
    if (std::find(order.begin(), order.end(), parameter) != order.end()) return;
    order.push_back(parameter);
    overwrites_all_ = overwrites_all_ && node.attributes.Bool("overwrite");
  }

  // A published copy's layout is its readers', so an output cannot show it.
  absl::Status CheckOutputs() const {
    for (const auto& [name, v] : graph_.outputs) {
      if (graph_.values[roots_[v]].kind == ir::ValueKind::kPublished) {
        return absl::InvalidArgumentError(absl::StrCat("[plan] output ", name, " is a published copy of a parameter"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ListInputs() {
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      const ir::Value& value = graph_.values[v];
      if (value.kind != ir::ValueKind::kInput) continue;
      input_index_[static_cast<ir::ValueId>(v)] = static_cast<int64_t>(plan_.inputs.size());
      plan_.inputs.push_back({value.name, value.type, Space::kInput, static_cast<int64_t>(plan_.inputs.size())});
      plan_.input_bytes += AlignUp(BytesOf(plan_.inputs.back()));
    }
    return absl::OkStatus();
  }

  absl::Status AddStep(const ir::Node& node) {
    NodeDesc desc{.op = node.op, .name = node.name, .attributes = node.attributes, .threads = threads_};
    for (ir::ValueId v : node.inputs) {
      desc.inputs.push_back(graph_.type(v));
      const ir::ValueKind kind = graph_.values[v].kind;
      desc.parameter_inputs.push_back(node.op != ir::OpKind::kAccumulateGrad &&
                                      (kind == ir::ValueKind::kParameter || kind == ir::ValueKind::kPublished));
    }
    for (ir::ValueId v : node.outputs) desc.outputs.push_back(graph_.type(v));
    desc.steps = node.steps;
    desc.results = node.results;
    PlanStep step{.name = node.name, .layer = node.layer, .op = node.op, .stage = node.stage};
    AMPD_ASSIGN_OR_RETURN(step.kernel, backend_.kernels().Prepare(desc));
    step.cost = ops::CostOf(node.op, {node.name, node.attributes, desc.inputs, &node}, desc.outputs);
    step.attributes = node.attributes;
    step.fused = node.steps;
    step.fused_results = node.results;
    const int index = static_cast<int>(plan_.steps.size());
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      step.inputs.push_back(PlaceInput(node, static_cast<int>(i), step.kernel.get()));
      Touch(node.inputs[i], index);
    }
    for (ir::ValueId v : node.outputs) {
      step.outputs.push_back({graph_.values[v].name, graph_.type(v), Space::kArena, 0});
      const auto gradient = in_place_.find(v);
      if (gradient == in_place_.end()) {
        Touch(v, index);
      } else {
        PlaceGradient(gradient->second, &step.outputs.back());
      }
    }
    if (node.op == ir::OpKind::kAccumulateGrad) step.outputs.push_back(step.inputs[1]);
    nodes_.push_back(&node);
    plan_.steps.push_back(std::move(step));
    return absl::OkStatus();
  }

  PlannedTensor PlaceInput(const ir::Node& node, int i, Kernel* kernel) {
    const ir::ValueId v = node.inputs[i];
    const ir::Value& root = graph_.values[roots_[v]];
    PlannedTensor tensor{graph_.values[v].name, graph_.type(v), Space::kArena, 0};
    if (root.kind == ir::ValueKind::kParameter || root.kind == ir::ValueKind::kPublished) {
      PlaceParameter(node, i, root, kernel, &tensor);
    } else {
      Place(roots_[v], ops::GetOpDef(node.op).has_effects, &tensor);
    }
    return tensor;
  }

  // Where `root`, no published copy, lies; SetOffset tells where in the arena.
  void Place(ir::ValueId root, bool pending, PlannedTensor* tensor) {
    const ir::Value& value = graph_.values[root];
    switch (value.kind) {
      case ir::ValueKind::kActivation:
      case ir::ValueKind::kPublished:
        break;
      case ir::ValueKind::kInput:
        tensor->space = Space::kInput;
        tensor->offset = input_index_[root];
        break;
      case ir::ValueKind::kConstant:
        tensor->space = Space::kConstant;
        tensor->offset = ConstantIndex(root);
        break;
      case ir::ValueKind::kLossSeed:
        tensor->space = Space::kLossSeed;
        break;
      case ir::ValueKind::kState:
        tensor->space = pending ? Space::kPendingState : Space::kState;
        tensor->offset = layout_->state_offsets()[value.slot];
        break;
      case ir::ValueKind::kParameter:
        tensor->space = Space::kMaster;
        tensor->offset = layout_->slots()[value.slot].offset * static_cast<int64_t>(sizeof(float));
        break;
    }
  }

  void PlaceGradient(int32_t parameter, PlannedTensor* tensor) const {
    tensor->space = Space::kGradient;
    tensor->offset = layout_->slots()[parameter].offset * static_cast<int64_t>(sizeof(float));
  }

  int64_t ConstantIndex(ir::ValueId v) {
    const auto [it, inserted] = constant_index_.insert({v, static_cast<int64_t>(plan_.constants.size())});
    if (inserted) {
      plan_.constants.push_back(graph_.values[v].data);
      const ir::TensorType& type = graph_.type(v);
      plan_.constant_bytes += AlignUp(NumElements(type.shape) * SizeOf(type.dtype));
    }
    return it->second;
  }

  void PlaceParameter(const ir::Node& node, int i, const ir::Value& value, Kernel* kernel, PlannedTensor* tensor) {
    if (node.op == ir::OpKind::kAccumulateGrad) {
      tensor->name = node.name;
      return PlaceGradient(value.slot, tensor);
    }
    absl::optional<PublishedLayout> layout = kernel->published_layout(i);
    if (!layout && value.kind == ir::ValueKind::kParameter) return Place(roots_[node.inputs[i]], false, tensor);
    if (!layout) layout = DenseCopy(value.type);
    const Shape& shape = layout_->parameters()[value.slot].type.shape;
    if (shape != value.type.shape) layout = Padded(*std::move(layout), shape, value.type.shape);
    tensor->space = Space::kPublished;
    tensor->offset = layout_->copies()[layout_->AddCopy(value.slot, *std::move(layout))].offset;
  }

  // The backend outlives every plan made with it.
  PublishedLayout DenseCopy(const ir::TensorType& type) const {
    auto* backend = const_cast<Backend*>(&backend_);
    const int64_t size = NumElements(type.shape);
    const DType dtype = type.dtype;
    return {.key = absl::StrCat(DTypeName(dtype), ":dense"),
            .bytes = size * SizeOf(dtype),
            .write = [backend, size, dtype](const float* master, void* copy,
                                            void*) { return backend->Publish(master, size, dtype, copy); },
            .dense = type};
  }

  // `layout` of a parameter of `shape` with zeros behind it up to `padded`: what the layout was made for.
  PublishedLayout Padded(PublishedLayout layout, const Shape& shape, const Shape& padded) const {
    auto* backend = const_cast<Backend*>(&backend_);
    layout.key = absl::StrCat(layout.key, " of ", ShapeString(padded));
    const int64_t bytes = AlignUp(NumElements(padded) * static_cast<int64_t>(sizeof(float)));
    layout.workspace_bytes += bytes;
    layout.write = [backend, write = std::move(layout.write), shape, padded, bytes](const float* master, void* copy,
                                                                                    void* workspace) -> absl::Status {
      auto* wide = static_cast<float*>(workspace);
      AMPD_RETURN_IF_ERROR(backend->PadInto(master, shape, padded, wide));
      return write(wide, copy, static_cast<char*>(workspace) + bytes);
    };
    return layout;
  }

  void Touch(ir::ValueId v, int step) {
    const ir::ValueId root = roots_[v];
    if (graph_.values[root].kind != ir::ValueKind::kActivation) return;
    const auto [it, inserted] = range_of_.insert({root, static_cast<int>(ranges_.size())});
    if (inserted) {
      const ir::TensorType& type = graph_.type(root);
      ranges_.push_back({NumElements(type.shape) * SizeOf(type.dtype), step, step});
    }
    ranges_[it->second].last = std::max(ranges_[it->second].last, step);
  }

  void LayOut() {
    const int steps = static_cast<int>(plan_.steps.size());
    for (const auto& [name, v] : graph_.outputs) Touch(v, steps);
    for (int s = 0; s < steps; ++s) Overwrite(s);
    plan_.activation_bytes = passes::PlanMemory(ranges_).total_bytes;
    std::vector<int> workspaces;
    for (int s = 0; s < steps; ++s) {
      workspaces.push_back(static_cast<int>(ranges_.size()));
      ranges_.push_back({plan_.steps[s].kernel->workspace_bytes(), s, s});
    }
    const passes::MemoryPlan memory = passes::PlanMemory(ranges_);
    plan_.arena_bytes = memory.total_bytes;
    for (int s = 0; s < steps; ++s) {
      PlanStep& step = plan_.steps[s];
      step.workspace_offset = memory.offsets[workspaces[s]];
      for (size_t i = 0; i < nodes_[s]->inputs.size(); ++i) SetOffset(nodes_[s]->inputs[i], memory, &step.inputs[i]);
      for (size_t i = 0; i < nodes_[s]->outputs.size(); ++i) SetOffset(nodes_[s]->outputs[i], memory, &step.outputs[i]);
    }
    for (const auto& [name, v] : graph_.outputs) {
      PlannedTensor tensor{name, graph_.type(v), Space::kArena, 0};
      Place(roots_[v], false, &tensor);
      SetOffset(v, memory, &tensor);
      plan_.outputs[name] = std::move(tensor);
    }
  }

  // Gives outputs of step `s` the memory of inputs that end there, where the kernel allows it.
  void Overwrite(int s) {
    const ir::Node& node = *nodes_[s];
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const int i = plan_.steps[s].kernel->overwrites(static_cast<int>(o));
      if (i < 0 || static_cast<size_t>(i) >= node.inputs.size()) continue;
      const ir::ValueId from = roots_[node.inputs[i]];
      const auto reads =
          std::count_if(node.inputs.begin(), node.inputs.end(), [&](ir::ValueId v) { return roots_[v] == from; });
      const auto old = range_of_.find(from), own = range_of_.find(node.outputs[o]);
      if (old == range_of_.end() || own == range_of_.end() || reads != 1) continue;
      passes::LiveRange& memory = ranges_[old->second];
      passes::LiveRange& output = ranges_[own->second];
      if (memory.last != s || memory.bytes != output.bytes) continue;
      memory.last = output.last;
      output.bytes = 0;
      own->second = old->second;
    }
  }

  void SetOffset(ir::ValueId v, const passes::MemoryPlan& memory, PlannedTensor* tensor) const {
    auto it = range_of_.find(roots_[v]);
    if (it != range_of_.end()) tensor->offset = memory.offsets[it->second];
  }

  const ir::Graph& graph_;
  const Backend& backend_;
  const int threads_;
  ModelLayout* layout_;
  Plan plan_;
  std::vector<ir::ValueId> roots_;
  std::map<ir::ValueId, int32_t> in_place_;  // to the parameter
  bool overwrites_all_ = true;
  std::map<ir::ValueId, int64_t> input_index_;
  std::map<ir::ValueId, int64_t> constant_index_;
  std::vector<const ir::Node*> nodes_;  // by step
  std::vector<passes::LiveRange> ranges_;
  std::map<ir::ValueId, int> range_of_;
};

}  // namespace

int64_t BytesOf(const PlannedTensor& tensor) { return NumElements(tensor.type.shape) * SizeOf(tensor.type.dtype); }

absl::StatusOr<Plan> MakePlan(const ir::Graph& graph, const Backend& backend, int threads, ModelLayout* layout) {
  return Planner(graph, backend, threads, layout).Run();
}

}  // namespace ampd::runtime
