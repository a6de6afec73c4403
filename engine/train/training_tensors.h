// Every tensor that a training carries from step to step, and its two files: model.safetensors (fp32 masters and
// untrained state, named and laid out as PyTorch's state_dict) and optimizer.safetensors ("<parameter>.m1", "...m2").
#ifndef AMPD_ENGINE_TRAIN_TRAINING_TENSORS_H_
#define AMPD_ENGINE_TRAIN_TRAINING_TENSORS_H_

#include <vector>

#include "absl/status/status.h"
#include "engine/core/tensor.h"
#include "engine/runtime/model_memory.h"
#include "engine/train/safetensors.h"

namespace ampd::train {

// The optimizer's fp32 arenas, laid out as the masters.
class Moments {
 public:
  // `count` of them: 0, 1 or 2; zero at first.
  Moments(const runtime::ModelLayout& layout, int count);
  int count() const { return static_cast<int>(arenas_.size()); }
  // nullptr for i >= count().
  float* arena(int i) const { return i < count() ? reinterpret_cast<float*>(arenas_[i].data()) : nullptr; }

 private:
  std::vector<AlignedBuffer> arenas_;
};

// What to write. The sources borrow `memory` and `moments`.
std::vector<TensorSource> ModelTensors(runtime::ModelMemory* memory);
std::vector<TensorSource> MomentTensors(const runtime::ModelLayout& layout, const Moments& moments);

// Takes over what such a file holds. Both are strict: FAILED_PRECONDITION, naming it, for a tensor that is missing,
// unknown, or of another dtype or shape; then nothing was changed.
absl::Status LoadModel(const Safetensors& file, runtime::ModelMemory* memory);
absl::Status LoadMoments(const Safetensors& file, const runtime::ModelLayout& layout, Moments* moments);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_TRAINING_TENSORS_H_
