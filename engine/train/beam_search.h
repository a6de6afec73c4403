// Prefix beam search over the outputs of a network that ctc trains.
#ifndef AMPD_ENGINE_TRAIN_BEAM_SEARCH_H_
#define AMPD_ENGINE_TRAIN_BEAM_SEARCH_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace ampd::train {

struct BeamResult {
  std::vector<int32_t> labels;
  // Natural logarithm of the probability of all the paths that spell `labels`, as far as the search kept them.
  double log_probability = 0;
};

// The most probable labels that were found (Graves 2012, section 7.5.3; Hannun et al. 2014, without a language model):
// after each step the `width` most probable beginnings are kept, each with the probabilities of its paths that end in
// the blank and of those that do not. With a width of no less than the beginnings there are the result is exact.
// `logits`: [steps, classes], whose softmax are the probabilities; a NaN counts as probability 0, and a step without
// any number above minus infinity is left out. `width` >= 1, 0 <= blank < classes. In float64; of equal probabilities
// the one found first wins.
BeamResult BeamSearch(absl::Span<const float> logits, int64_t classes, int32_t blank, int64_t width);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_BEAM_SEARCH_H_
