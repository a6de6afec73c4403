// Keeps what is no training any more out of checkpoints: gradients are checked before each update, but what an update
// makes of them may not be finite all the same. The square of a gradient above 1.8e19 (5.8e20 in Adam's average) is
// infinite, and so is the second moment then for good: its parameter never moves again, and every loss stays finite.
#ifndef AMPD_ENGINE_TRAIN_FINITE_TENSORS_H_
#define AMPD_ENGINE_TRAIN_FINITE_TENSORS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/core/safetensors.h"

namespace ampd::train {

// Whether all of these floats are finite; they may lie at any address.
bool AllFinite(absl::string_view f32_bytes);

// The same sources, of which those in f32 that `which` names, by their names, end the writing where they are not
// finite: ABORTED, with Failure::DIVERGED, naming the tensor.
std::vector<TensorSource> MustBeFinite(std::vector<TensorSource> sources,
                                       const std::function<bool(const std::string&)>& which);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_FINITE_TENSORS_H_
