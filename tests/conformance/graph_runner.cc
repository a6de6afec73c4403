#include "tests/conformance/graph_runner.h"

#include <cstring>
#include <memory>
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
  runtime::Memory* device = backend->memory();
  AMPD_ASSIGN_OR_RETURN(runtime::ModelMemory memory, runtime::ModelMemory::Create(&layout, device));
  AMPD_RETURN_IF_ERROR(memory.Initialize(0));
  for (size_t p = 0; p < model.parameter_values.size(); ++p) {
    const TensorView from = model.parameter_values[p]->view();
    AMPD_RETURN_IF_ERROR(device->Upload(from.data, from.bytes(), memory.Master(static_cast<int32_t>(p)).data));
  }
  AMPD_RETURN_IF_ERROR(memory.PublishAll());
  AMPD_ASSIGN_OR_RETURN(const runtime::Buffer arena, runtime::Buffer::Allocate(device, plan.arena_bytes, "arena"));
  // NaN: nothing reads what was not written.
  AMPD_RETURN_IF_ERROR(runtime::WriteFromHost(device, arena.data(), arena.bytes(), [&](void* bytes) {
    std::memset(bytes, 0xff, static_cast<size_t>(arena.bytes()));
  }));
  AMPD_ASSIGN_OR_RETURN(const auto executor, runtime::Executor::Create(&plan, &memory, &arena));
  for (const runtime::PlannedTensor& input : plan.inputs) {
    const auto given = inputs.find(input.name);
    if (given == inputs.end()) return absl::NotFoundError(absl::StrCat("no value for input ", input.name));
    AMPD_RETURN_IF_ERROR(executor->BindInput(input.name, given->second->view().data));
  }
  AMPD_RETURN_IF_ERROR(memory.BeginUpdate());
  AMPD_RETURN_IF_ERROR(executor->Run({}));
  std::map<std::string, Tensor> results;
  for (const auto& [name, planned] : plan.outputs) {
    AMPD_ASSIGN_OR_RETURN(const TensorView view, executor->Output(name));
    Tensor copy(view.dtype, view.shape);
    AMPD_RETURN_IF_ERROR(device->Download(view.data, view.bytes(), copy.view().data));
    results.emplace(name, std::move(copy));
  }
  return results;
}

}  // namespace ampd::testing
