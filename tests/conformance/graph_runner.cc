#include "tests/conformance/graph_runner.h"

#include <cstring>
#include <utility>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/core/status.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/plan.h"

namespace ampd::testing {

absl::StatusOr<std::map<std::string, Tensor>> RunImported(
    const models::onnx::ImportedModel& model, const std::map<std::string, std::shared_ptr<const Tensor>>& inputs,
    int threads) {
  const std::unique_ptr<runtime::Backend> backend = MakeCpuBackend(threads);
  runtime::ModelLayout layout(model.graph);
  AMPD_ASSIGN_OR_RETURN(const runtime::Plan plan, runtime::MakePlan(model.graph, *backend, threads, &layout));
  runtime::ModelMemory memory(&layout);
  memory.Initialize(0);
  for (size_t p = 0; p < model.parameter_values.size(); ++p) {
    const TensorView from = model.parameter_values[p]->view();
    std::memcpy(memory.Master(static_cast<int32_t>(p)).data, from.data, static_cast<size_t>(from.bytes()));
  }
  AMPD_RETURN_IF_ERROR(memory.PublishAll());
  AlignedBuffer arena(plan.arena_bytes);
  std::memset(arena.data(), 0xff, static_cast<size_t>(plan.arena_bytes));  // NaN: nothing reads what was not written
  runtime::Executor executor(&plan, &memory, &arena);
  for (const runtime::PlannedTensor& input : plan.inputs) {
    const auto given = inputs.find(input.name);
    if (given == inputs.end()) return absl::NotFoundError(absl::StrCat("no value for input ", input.name));
    AMPD_RETURN_IF_ERROR(executor.BindInput(input.name, given->second->view().data));
  }
  memory.BeginUpdate();
  AMPD_RETURN_IF_ERROR(executor.Run({}));
  std::map<std::string, Tensor> results;
  for (const auto& [name, planned] : plan.outputs) {
    AMPD_ASSIGN_OR_RETURN(const TensorView view, executor.Output(name));
    Tensor copy(view.dtype, view.shape);
    if (view.size() > 0) std::memcpy(copy.view().data, view.data, static_cast<size_t>(view.bytes()));
    results.emplace(name, std::move(copy));
  }
  return results;
}

}  // namespace ampd::testing
