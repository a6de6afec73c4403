#include "tests/bench/kernel_runner.h"

#include <cstring>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/core/rng.h"
#include "engine/core/status.h"

namespace ampd::bench {

using runtime::Buffer;

absl::StatusOr<std::unique_ptr<KernelRunner>> KernelRunner::Make(runtime::NodeDesc desc, int64_t index_below,
                                                                 runtime::Backend* backend) {
  std::unique_ptr<KernelRunner> runner(new KernelRunner(std::move(desc)));
  if (backend == nullptr) {
    runner->own_backend_ = MakeCpuBackend(runner->desc_.threads);
    backend = runner->own_backend_.get();
  }
  runner->backend_ = backend;
  AMPD_RETURN_IF_ERROR(runner->Prepare(index_below));
  return runner;
}

absl::Status KernelRunner::Prepare(int64_t index_below) {
  runtime::Memory* memory = backend_->memory();
  AMPD_ASSIGN_OR_RETURN(kernel_, backend_->kernels().Prepare(desc_));
  for (size_t i = 0; i < desc_.inputs.size(); ++i) AMPD_RETURN_IF_ERROR(AddInput(static_cast<int>(i), index_below));
  for (const ir::TensorType& t : desc_.outputs) {
    AMPD_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(memory, NumElements(t.shape) * SizeOf(t.dtype), "output"));
    outputs_.push_back({buffer.data(), t.dtype, t.shape});
    buffers_.push_back(std::move(buffer));
  }
  AMPD_ASSIGN_OR_RETURN(workspace_, Buffer::Allocate(memory, kernel_->workspace_bytes(), "workspace"));
  AMPD_ASSIGN_OR_RETURN(step_, Buffer::Allocate(memory, sizeof(runtime::StepState), "step state"));
  const runtime::StepState step;
  return memory->Upload(&step, sizeof(step), step_.data());
}

absl::Status KernelRunner::AddInput(int i, int64_t index_below) {
  const ir::TensorType& type = desc_.inputs[i];
  const auto layout = desc_.IsParameter(i) ? kernel_->published_layout(i) : absl::nullopt;
  const int64_t bytes = layout ? layout->bytes : NumElements(type.shape) * SizeOf(type.dtype);
  AMPD_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(backend_->memory(), bytes, "input"));
  inputs_.push_back({buffer.data(), type.dtype, type.shape});
  buffers_.push_back(std::move(buffer));
  return Fill(type, index_below, layout ? &*layout : nullptr, buffers_.back().data());
}

absl::Status KernelRunner::Fill(const ir::TensorType& type, int64_t index_below, const runtime::PublishedLayout* layout,
                                char* to) {
  runtime::Memory* memory = backend_->memory();
  const int64_t n = NumElements(type.shape);
  RngSequence rng(1, "bench");
  if (!IsFloat(type.dtype)) {
    Tensor values(type.dtype, {n});
    std::memset(values.view().data, 1, static_cast<size_t>(values.view().bytes()));
    if (type.dtype == DType::kI32) {
      for (int32_t& v : values.as<int32_t>()) v = static_cast<int32_t>(rng.NextBelow(index_below));
    }
    return memory->Upload(values.view().data, values.view().bytes(), to);
  }
  Tensor values(DType::kF32, {n});
  for (float& v : values.as<float>()) v = rng.NextUniform() - 0.25f;
  AMPD_ASSIGN_OR_RETURN(const Buffer master, Buffer::Allocate(memory, values.view().bytes(), "values"));
  AMPD_ASSIGN_OR_RETURN(const Buffer workspace,
                        Buffer::Allocate(memory, layout ? layout->workspace_bytes : 0, "workspace"));
  AMPD_RETURN_IF_ERROR(memory->Upload(values.view().data, values.view().bytes(), master.data()));
  const auto* floats = reinterpret_cast<const float*>(master.data());
  AMPD_RETURN_IF_ERROR(layout ? layout->write(floats, to, workspace.data())
                              : backend_->Publish(floats, n, type.dtype, to));
  return memory->Wait();
}

absl::Status KernelRunner::Launch(int times) {
  const auto* step = reinterpret_cast<const runtime::StepState*>(step_.data());
  for (int i = 0; i < times; ++i) {
    AMPD_RETURN_IF_ERROR(kernel_->Launch({inputs_, outputs_, workspace_.data(), step}));
  }
  return backend_->memory()->Wait();
}

ops::Cost KernelRunner::cost() const {
  ir::Node node;
  node.steps = desc_.steps;
  node.results = desc_.results;
  return ops::CostOf(desc_.op, {desc_.name, desc_.attributes, desc_.inputs, &node}, desc_.outputs);
}

}  // namespace ampd::bench
