// What each parameter's update takes from the optimizer and from `optimizer.groups`.
#ifndef AMPD_ENGINE_TRAIN_PARAMETER_GROUPS_H_
#define AMPD_ENGINE_TRAIN_PARAMETER_GROUPS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/runtime/backend.h"
#include "engine/runtime/model_memory.h"
#include "proto/spec/resolve.h"

namespace ampd::train {

// One range for each of `parameters` (ascending), in order; neighbours that are updated alike share one, but under
// LAMB. INVALID_ARGUMENT with a violation of "<field>.groups[i].match", which proposes a near name, for each group that
// matches no parameter.
absl::StatusOr<std::vector<runtime::UpdateRange>> UpdateRangesOf(const ResolvedJobSpec& spec,
                                                                 const runtime::ModelLayout& layout,
                                                                 const std::vector<int32_t>& parameters,
                                                                 const std::string& field);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_PARAMETER_GROUPS_H_
