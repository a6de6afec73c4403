// Finds in a plan the dense layers that one block of threads can take together (dense_stack.h): forward and backward,
// in place of the plan's steps for each product, bias, activation and gradient. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_RESIDENT_STACK_H_
#define AMPD_ENGINE_BACKEND_CUDA_RESIDENT_STACK_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "engine/backend/cuda/dense_stack.h"
#include "engine/backend/cuda/resident_program.h"
#include "engine/runtime/plan.h"

namespace ampd::cuda {

struct ResidentStack {
  // Without addresses.
  DenseStack stack;
  // By layer; what a layer has not is null. They are the plan's.
  struct Tensors {
    const runtime::PlannedTensor *weight, *bias, *weight_grad, *bias_grad;
  };
  std::vector<Tensors> layers;
  const runtime::PlannedTensor *input = nullptr, *output = nullptr, *output_grad = nullptr;
  // By step of the plan: whether the stack does what it does.
  std::vector<bool> holds;
  // Steps in whose place it goes forward, and backward.
  size_t forward_at = 0, backward_at = 0;

  int64_t fragment_bytes() const { return int64_t{stack.fragments} * kFragmentBytes; }
  double flops() const;
  absl::StatusOr<DenseStack> WithAddresses(const AddressOf& address) const;
};

// None where the plan's first product does not begin such layers, or where somebody else reads what lies within them.
// Operands are 16-bit; at most kMostDenseLayers.
absl::optional<ResidentStack> FindResidentStack(const runtime::Plan& plan);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_RESIDENT_STACK_H_
