// Every tensor that a training carries from step to step, and its files: model.safetensors (fp32 masters and untrained
// state, named and laid out as PyTorch's state_dict), optimizer.safetensors ("<parameter>.m1", "...m2", "...m3", in the
// order of OptimizerConfig::moments(), of a job with several phases "<phase>.<parameter>.m1", and state that PyTorch's
// model does not have: the scales of FP8) and, where a running average is kept, ema.safetensors, as model.safetensors
// with the average in the masters' place.
#ifndef AMPD_ENGINE_TRAIN_TRAINING_TENSORS_H_
#define AMPD_ENGINE_TRAIN_TRAINING_TENSORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/core/safetensors.h"
#include "engine/core/tensor.h"
#include "engine/runtime/model_memory.h"

namespace ampd::train {

// fp32 arenas laid out as the masters: the optimizer's, and the running average. They lie in a backend's memory.
class Moments {
 public:
  // `count` of them, zero. `layout` and `memory` outlive them. RESOURCE_EXHAUSTED as runtime::Memory::Allocate.
  static absl::StatusOr<Moments> Create(const runtime::ModelLayout& layout, int count, runtime::Memory* memory);
  // Sets every element of these parameters in arena `i`.
  absl::Status Fill(int i, const std::vector<int32_t>& parameters, float value);
  int count() const { return static_cast<int>(arenas_.size()); }
  // nullptr for i >= count().
  float* arena(int i) const { return i < count() ? reinterpret_cast<float*>(arenas_[i].data()) : nullptr; }

 private:
  Moments(const runtime::ModelLayout* layout, runtime::Memory* memory) : layout_(layout), memory_(memory) {}

  const runtime::ModelLayout* layout_;
  runtime::Memory* memory_;
  std::vector<runtime::Buffer> arenas_;
};

// What one optimizer keeps of the parameters that it updates.
struct PhaseMoments {
  // Before the parameters' names on disk: "<phase>." or nothing.
  std::string prefix;
  std::vector<int32_t> parameters;
  std::vector<float*> arenas;  // borrowed; in the memory of the model that they belong to
};

// What to write. The sources borrow `memory`, `moments` and `average`.
std::vector<TensorSource> ModelTensors(runtime::ModelMemory* memory);
// Empty where no average is kept.
std::vector<TensorSource> AverageTensors(runtime::ModelMemory* memory, const Moments& average);
std::vector<TensorSource> OptimizerTensors(runtime::ModelMemory* memory, const std::vector<PhaseMoments>& moments);

// FAILED_PRECONDITION, marked INVALID_SPEC, of a checkpoint that is whole and does not fit, as `what` says: no attempt
// would find another. Tells how to go on.
absl::Status DoesNotFit(absl::string_view what);

// Takes over what such a file holds. All are strict: DoesNotFit(), naming it, for a tensor that is missing, unknown, or
// of another dtype or shape; then nothing was changed.
absl::Status LoadModel(const Safetensors& file, runtime::ModelMemory* memory);
// The average only: the states are model.safetensors' to give.
absl::Status LoadAverage(const Safetensors& file, runtime::ModelMemory* memory, Moments* average);
// Moments of parameters that are not trained may be there, and are passed over. `of_other_mode`: the file may hold
// tensors besides, for the scales that a model has differ with its phases' modes.
absl::Status LoadOptimizer(const Safetensors& file, runtime::ModelMemory* memory,
                           const std::vector<PhaseMoments>& moments, bool of_other_mode = false);

// Gives `to`, in whichever memory, the masters and committed states of `from`, by name; `from` may have more: a model's
// states differ with its mode. INTERNAL, naming it, for one that `from` lacks. Published copies are the caller's to
// write.
absl::Status CopyModel(runtime::ModelMemory* from, runtime::ModelMemory* to);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_TRAINING_TENSORS_H_
