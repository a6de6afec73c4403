// Where the priors of the multibox loss are.
#ifndef AMPD_ENGINE_MODELS_PRIOR_BOXES_H_
#define AMPD_ENGINE_MODELS_PRIOR_BOXES_H_

#include <cstdint>

#include "ampd/v1/model.pb.h"
#include "engine/core/tensor.h"

namespace ampd::models {

// Of a resolved loss. No more than ResolveLoss lets through.
int64_t CountPriors(const v1::MultiboxLoss& loss);

// f32 [priors, 4] in shares of the image's sides: x and y of the center, width and height; computed in double. Map by
// map, then as PriorMap says. A prior of scale s and ratio r is s * sqrt(r) wide and s / sqrt(r) high (Liu et al. 2016,
// section 2.2).
Tensor PriorBoxes(const v1::MultiboxLoss& loss);

}  // namespace ampd::models

#endif  // AMPD_ENGINE_MODELS_PRIOR_BOXES_H_
