// Products and convolutions of several sizes, each as a graph of one operation, in every mode.
#ifndef AMPD_ENGINE_TRAIN_SWEEP_H_
#define AMPD_ENGINE_TRAIN_SWEEP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ampd/v1/event.pb.h"
#include "ampd/v1/job.pb.h"
#include "engine/ir/graph.h"
#include "engine/train/trainer.h"
#include "engine/train/turns.h"

namespace ampd::train {

// What one size of a sweep multiplies.
struct SweepSize {
  v1::Sweep::Kind kind = v1::Sweep::GEMM;
  int64_t size = 1;    // extent of the matrices, or channels
  int64_t kernel = 1;  // side, of a convolution alone, as the next
  int64_t image = 1;

  // "1024" or "64 channels, 3x3".
  std::string Name() const;
  // Of one run, a multiply-add being two. Padding at the images' borders counts.
  double flops() const;
  // Its tensors in f32.
  double bytes() const;
};

// In the order measured: by size, then by kernel. `sweep` is resolved.
std::vector<SweepSize> SizesOf(const v1::Sweep& sweep);

// f32: the input "x" and the parameter "op.weight" give the output "y".
absl::StatusOr<ir::Graph> GraphOf(const SweepSize& size);

struct SweepOptions {
  TrainerOptions trainer;
  std::vector<v1::PrecisionSpec::Mode> modes;
  int64_t warmup_steps = 0;
  int64_t steps = 1;
  TurnOptions turns;
};

// Measures one size in every mode as MeasureInTurn() does; a cell for each, in their order. Converting operands from
// f32, and the result to it, is not timed; what FP8 does to quantize them is.
absl::StatusOr<std::vector<v1::BenchCell>> MeasureSize(const SweepSize& size, const SweepOptions& options);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_SWEEP_H_
