// A backend that hands everything on to another one: tests override what they look at.
#ifndef AMPD_TESTS_SUPPORT_FORWARDING_BACKEND_H_
#define AMPD_TESTS_SUPPORT_FORWARDING_BACKEND_H_

#include <memory>
#include <utility>

#include "engine/runtime/backend.h"
#include "engine/runtime/lap_timer.h"
#include "engine/runtime/step_loop.h"

namespace ampd::testing {

class ForwardingBackend : public runtime::Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<runtime::Backend> to) : to_(std::move(to)) {}

  absl::string_view name() const override { return to_->name(); }
  const runtime::KernelTable& kernels() const override { return to_->kernels(); }
  runtime::Memory* memory() const override { return to_->memory(); }
  bool CanFuse(ir::OpKind op) const override { return to_->CanFuse(op); }
  passes::JoinPolicy joins() const override { return to_->joins(); }
  passes::PaddingPolicy padding() const override { return to_->padding(); }
  absl::Status CheckGradients(const float* gradients, absl::Span<const runtime::ArenaSlot> slots, float factor,
                              runtime::GradientCheck* check) override {
    return to_->CheckGradients(gradients, slots, factor, check);
  }
  absl::Status Update(const runtime::UpdateArgs& args) override { return to_->Update(args); }
  absl::Status Publish(const float* masters, int64_t size, DType dtype, void* copy) override {
    return to_->Publish(masters, size, dtype, copy);
  }
  absl::Status PadInto(const float* from, const Shape& shape, const Shape& padded, float* to) override {
    return to_->PadInto(from, shape, padded, to);
  }
  absl::StatusOr<std::unique_ptr<runtime::StepLoop>> MakeStepLoop(const runtime::StepLoopConfig& config) override {
    return to_->MakeStepLoop(config);
  }
  absl::StatusOr<std::unique_ptr<runtime::LapTimer>> MakeLapTimer(bool kernels) override {
    return to_->MakeLapTimer(kernels);
  }
  absl::Status FindNonFinite(const TensorView& tensor, bool* found, bool* is_nan) override {
    return to_->FindNonFinite(tensor, found, is_nan);
  }

 protected:
  runtime::Backend* to() const { return to_.get(); }

 private:
  const std::unique_ptr<runtime::Backend> to_;
};

}  // namespace ampd::testing

#endif  // AMPD_TESTS_SUPPORT_FORWARDING_BACKEND_H_
