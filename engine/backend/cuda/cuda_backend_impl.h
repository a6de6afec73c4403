// The backend itself; engine/runtime/backend.h is its contract. Internal, but for tests that plan for devices that are
// not there.
#ifndef AMPD_ENGINE_BACKEND_CUDA_CUDA_BACKEND_IMPL_H_
#define AMPD_ENGINE_BACKEND_CUDA_CUDA_BACKEND_IMPL_H_

#include <memory>
#include <vector>

#include "engine/backend/cuda/arena_passes.h"
#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/cuda_memory.h"
#include "engine/backend/cuda/device_memory.h"
#include "engine/backend/cuda/parameters.h"
#include "engine/runtime/backend.h"

namespace ampd::cuda {

class CudaBackend : public runtime::Backend {
 public:
  // With a context that is not open it makes plans, and everything else fails.
  explicit CudaBackend(std::unique_ptr<Context> context);

  absl::string_view name() const override { return "cuda"; }
  const runtime::KernelTable& kernels() const override { return kernels_; }
  bool CanFuse(ir::OpKind op) const override;
  passes::JoinPolicy joins() const override { return passes::LibraryJoins(); }
  bool turns_codes() const override { return context_->properties().has_fp8(); }
  passes::PaddingPolicy padding() const override { return passes::kTensorCorePadding; }
  runtime::Memory* memory() const override { return &memory_; }

  // These wait for the device. Their lists are kept from call to call.
  absl::Status CheckGradients(const float* gradients, absl::Span<const runtime::ArenaSlot> slots, float factor,
                              runtime::GradientCheck* check) override;
  absl::Status FindNonFinite(const TensorView& tensor, bool* found, bool* is_nan) override;
  // These only enqueue, the update but for its first call with the same arguments.
  absl::Status Update(const runtime::UpdateArgs& args) override;
  absl::Status Publish(const float* masters, int64_t size, DType dtype, void* copy) override {
    return PublishDense(context_.get(), masters, size, dtype, copy);
  }
  absl::Status PadInto(const float* from, const Shape& shape, const Shape& padded, float* to) override {
    return cuda::PadInto(context_.get(), from, shape, padded, to);
  }

  absl::StatusOr<std::unique_ptr<runtime::StepLoop>> MakeStepLoop(const runtime::StepLoopConfig& config) override;
  absl::StatusOr<std::unique_ptr<runtime::LapTimer>> MakeLapTimer(bool kernels) override;

  Context* context() const { return context_.get(); }

 private:
  // What a host-decided pass reads and writes on the device.
  struct Scratch {
    float factor;
    CheckResult check;
    UpdateControl update;
    NonFiniteFind find;
  };
  struct KeptCheck {
    const float* gradients;
    std::vector<runtime::ArenaSlot> slots;
    std::unique_ptr<GradientCheckPass> pass;
  };
  struct KeptUpdate {
    runtime::UpdateArgs args;
    std::vector<runtime::UpdateRange> ranges;
    std::unique_ptr<UpdatePass> pass;
  };

  absl::StatusOr<Scratch*> DeviceScratch();
  absl::StatusOr<GradientCheckPass*> CheckPassFor(const float* gradients, absl::Span<const runtime::ArenaSlot> slots);
  absl::StatusOr<UpdatePass*> UpdatePassFor(const runtime::UpdateArgs& args);

  // Before what was made with it.
  std::unique_ptr<Context> context_;
  mutable CudaMemory memory_;
  runtime::KernelTable kernels_;
  DeviceArray scratch_;
  bool has_scratch_ = false;
  std::vector<KeptCheck> checks_;
  std::vector<KeptUpdate> updates_;
};

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_CUDA_BACKEND_IMPL_H_
