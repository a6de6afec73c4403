// How a text goes on, byte by byte or token by token, given what a network says of the next one.
#ifndef AMPD_ENGINE_TRAIN_TEXT_SAMPLING_H_
#define AMPD_ENGINE_TRAIN_TEXT_SAMPLING_H_

#include <cstdint>

#include "absl/types/span.h"

namespace ampd::train {

// An index drawn from softmax(logits / temperature), restricted to the `top_k` largest logits (0: all; of equal ones
// the first). Temperature 0: the first of the largest. `uniform` in [0, 1) is the draw: the first index at which the
// sum of the probabilities, in the indices' order, is above it. -1 where no logit is finite, or one is NaN or
// +infinity. Pure; sums in double.
int SampleIndex(absl::Span<const float> logits, double temperature, int64_t top_k, float uniform);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_TEXT_SAMPLING_H_
