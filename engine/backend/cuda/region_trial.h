// Internal: random operands on which two ways to compute the same are compared and measured.
#ifndef AMPD_ENGINE_BACKEND_CUDA_REGION_TRIAL_H_
#define AMPD_ENGINE_BACKEND_CUDA_REGION_TRIAL_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/device_memory.h"
#include "engine/core/tensor.h"
#include "engine/ir/graph.h"

namespace ampd::cuda {

// Tensors of its own on the device, freed with it. Movable.
class RegionTrial {
 public:
  // Inputs of type i are uniform in [-bounds[i], bounds[i]), the same in every run, and bounds[i] where they are one
  // number without an axis, a scale; they are drawn once and repeat after a prime number of elements.
  // RESOURCE_EXHAUSTED where there is no memory for them. Waits.
  static absl::StatusOr<RegionTrial> Create(Context* context, const std::vector<ir::TensorType>& inputs,
                                            const std::vector<float>& bounds,
                                            const std::vector<ir::TensorType>& outputs);

  const std::vector<TensorView>& inputs() const { return inputs_; }
  const std::vector<TensorView>& outputs() const { return outputs_; }
  // Fills the outputs with NaN.
  absl::Status Poison() const;
  // Makes the first element of every input with axes a NaN, and the last one of the first input an infinity (or what an
  // 8-bit format without one has for it).
  absl::Status Spoil() const;

 private:
  std::vector<DeviceArray> memory_;
  std::vector<TensorView> inputs_, outputs_;
  Context* context_ = nullptr;
};

// Up to some four million elements of a tensor of f32, f16 or bf16 on the device: all of a small one, of others pieces
// at equal distances, the first and the last among them. Waits.
absl::StatusOr<std::vector<float>> SampleOf(Context* context, const TensorView& tensor);

// How sums of products may come out in two ways that are both right.
enum class SumsOf {
  k16BitOperands,  // exact products
  // The same, but their sums are kept to fewer bits than fp32 on the way, in parts that the library chooses.
  k8BitOperands,
  kF32Operands,
  kTf32Operands,  // or not rounded, in one of the ways
};

// "" where samples of the same result, computed in two ways, differ by no more than the roundings of `product`, from
// which it comes, and of itself to `dtype`, and sums in another order, may make; and where `joined` is not finite
// wherever `parts` is not. Else which sample, and its values. Where the product is minus infinity anything may be, as
// activations have limits there.
std::string DifferenceOf(const std::vector<float>& product, const std::vector<float>& parts,
                         const std::vector<float>& joined, DType dtype, SumsOf sums);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_REGION_TRIAL_H_
