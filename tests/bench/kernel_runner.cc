#include "tests/bench/kernel_runner.h"

#include <cstring>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/core/rng.h"
#include "engine/core/status.h"

namespace ampd::bench {

absl::StatusOr<std::unique_ptr<KernelRunner>> KernelRunner::Make(runtime::NodeDesc desc, int64_t index_below) {
  std::unique_ptr<KernelRunner> runner(new KernelRunner(std::move(desc)));
  AMPD_RETURN_IF_ERROR(runner->Prepare(index_below));
  return runner;
}

absl::Status KernelRunner::Prepare(int64_t index_below) {
  backend_ = MakeCpuBackend(desc_.threads);
  AMPD_ASSIGN_OR_RETURN(kernel_, backend_->kernels().Prepare(desc_));
  for (size_t i = 0; i < desc_.inputs.size(); ++i) AMPD_RETURN_IF_ERROR(AddInput(static_cast<int>(i), index_below));
  for (const ir::TensorType& t : desc_.outputs) {
    buffers_.emplace_back(NumElements(t.shape) * SizeOf(t.dtype));
    outputs_.push_back({buffers_.back().data(), t.dtype, t.shape});
  }
  workspace_ = AlignedBuffer(kernel_->workspace_bytes());
  return absl::OkStatus();
}

absl::Status KernelRunner::AddInput(int i, int64_t index_below) {
  const ir::TensorType& type = desc_.inputs[i];
  const int64_t n = NumElements(type.shape);
  const auto layout = desc_.IsParameter(i) ? kernel_->published_layout(i) : absl::nullopt;
  buffers_.emplace_back(layout ? layout->bytes : n * SizeOf(type.dtype));
  void* data = buffers_.back().data();
  inputs_.push_back({data, type.dtype, type.shape});
  RngSequence rng(1, "bench");
  if (!IsFloat(type.dtype)) {
    if (type.dtype != DType::kI32) {
      std::memset(data, 1, static_cast<size_t>(n * SizeOf(type.dtype)));
      return absl::OkStatus();
    }
    for (int64_t k = 0; k < n; ++k) inputs_.back().as<int32_t>()[k] = static_cast<int32_t>(rng.NextBelow(index_below));
    return absl::OkStatus();
  }
  Tensor values(DType::kF32, {n});
  for (float& v : values.as<float>()) v = rng.NextUniform() - 0.25f;
  const AlignedBuffer workspace(layout ? layout->workspace_bytes : 0);
  if (layout) return layout->write(values.as<float>().data(), data, workspace.data());
  return backend_->Publish(values.as<float>().data(), n, type.dtype, data);
}

absl::Status KernelRunner::Launch() { return kernel_->Launch({inputs_, outputs_, workspace_.data(), &step_}); }

ops::Cost KernelRunner::cost() const {
  ir::Node node;
  node.steps = desc_.steps;
  node.results = desc_.results;
  return ops::CostOf(desc_.op, {desc_.name, desc_.attributes, desc_.inputs, &node}, desc_.outputs);
}

}  // namespace ampd::bench
