// How far the labels that a ctc network finds are from those it should find.
#ifndef AMPD_ENGINE_TRAIN_LABEL_ERRORS_H_
#define AMPD_ENGINE_TRAIN_LABEL_ERRORS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace ampd::train {

// The labels that the best path spells (Graves et al. 2006, section 3.2): the first largest of the `classes` logits of
// each step, of [steps, classes], with repetitions joined and blanks left out. NaN is never the largest.
std::vector<int32_t> BestPathLabels(absl::Span<const float> logits, int64_t classes, int32_t blank);

// Insertions, deletions and substitutions that it takes at least to turn one into the other (Levenshtein 1966).
int64_t EditDistance(absl::Span<const int32_t> a, absl::Span<const int32_t> b);

// How well samples were spelled, summed up.
class SpellingErrors {
 public:
  void Add(absl::Span<const int32_t> found, absl::Span<const int32_t> labels);

  // Edit distances over the number of labels; of characters the character error rate. NaN without labels.
  double LabelErrorRate() const;
  // Share of samples without any error. 0 without samples.
  double ExactMatch() const;

 private:
  double errors_ = 0, labels_ = 0, exact_ = 0, samples_ = 0;
};

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_LABEL_ERRORS_H_
