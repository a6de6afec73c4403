// Constants that are zeros, of which a plan holds no data.
#ifndef AMPD_ENGINE_RUNTIME_ZERO_CONSTANTS_H_
#define AMPD_ENGINE_RUNTIME_ZERO_CONSTANTS_H_

#include <cstdint>

#include "engine/runtime/plan.h"

namespace ampd::runtime {

// Bytes of the largest of them; 0 where there is none. So many zeros do for all of them, as nobody writes a constant.
int64_t ZeroConstantBytes(const Plan& plan);

}  // namespace ampd::runtime

#endif  // AMPD_ENGINE_RUNTIME_ZERO_CONSTANTS_H_
