// Sums of a row in a fixed order that vectorises: element i goes to lane i mod 16, lanes add up at the end. The same
// bits whatever the instruction set.
#ifndef AMPD_ENGINE_BACKEND_CPU_LANE_SUMS_H_
#define AMPD_ENGINE_BACKEND_CPU_LANE_SUMS_H_

#include <cstdint>

#include "engine/backend/cpu/vector_math.h"

namespace ampd::cpu {

inline constexpr int kLanes = 16;

struct LaneSum {
  double lanes[kLanes] = {};

  AMPD_CPU_INLINE double Total() const {
    double total = 0;
    for (double lane : lanes) total += lane;
    return total;
  }
};

// body(i, lane) for i = 0..n-1; inlined into its caller, whose instruction set it is compiled for.
template <typename Body>
AMPD_CPU_INLINE void ForEachLane(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) body(i + lane, lane);
  }
  for (int lane = 0; i < n; ++i, ++lane) body(i, lane);
}

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_LANE_SUMS_H_
