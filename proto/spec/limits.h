// Bounds that more than one part keeps to.
#ifndef AMPD_PROTO_SPEC_LIMITS_H_
#define AMPD_PROTO_SPEC_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace ampd {

// Of a training, attempted ones.
inline constexpr int64_t kMaxSteps = int64_t{1} << 40;

// Phases of one job of which figures are kept, by name: more than a spec may have, and no more, since a worker names
// them.
inline constexpr size_t kMaxPhaseNames = 64;

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_LIMITS_H_
