// The time that a plan's steps would take if each computed at the rate of a large product and moved its tensors at the
// bandwidth of a plain copy, whichever takes longer.
#ifndef AMPD_TESTS_BENCH_FLOOR_H_
#define AMPD_TESTS_BENCH_FLOOR_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/runtime/plan.h"

namespace ampd::bench {

// What this machine does at this moment. FLOP/s count a multiply-add as two.
struct MachineRates {
  double f32_flops = 0;   // a second, oneDNN's product of f32 matrices of 1024 x 1024
  double bf16_flops = 0;  // the same of bf16; f16 has no kernel and runs at f32's rate
  double bytes = 0;       // a second, read and written by a copy within `working_set` bytes
};

// Takes about a tenth of a second a rate; the best of several runs, on `threads` threads. `working_set` is cut to
// between 64 KiB and 256 MiB.
absl::StatusOr<MachineRates> MeasureRates(int threads, int64_t working_set);

struct Floor {
  double flops = 0;    // of every step, as its op counts them
  double bytes = 0;    // inputs read once and outputs written once, of every step of the plan and of the update
  double seconds = 0;  // the sum over the steps of the longer of flops / rate and bytes / bandwidth
};

// `update_bytes`: what checking the gradients, the update and publishing move once a step.
Floor FloorOf(const runtime::Plan& plan, double update_bytes, const MachineRates& rates);

}  // namespace ampd::bench

#endif  // AMPD_TESTS_BENCH_FLOOR_H_
