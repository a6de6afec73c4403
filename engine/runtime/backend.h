// What a device family offers: kernels for plan steps, and the flat-arena passes of the update.
#ifndef AMPD_ENGINE_RUNTIME_BACKEND_H_
#define AMPD_ENGINE_RUNTIME_BACKEND_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/core/dtype.h"
#include "engine/optim/optimizer.h"
#include "engine/passes/join_products.h"
#include "engine/passes/pad_for_tensor_cores.h"
#include "engine/runtime/kernel_table.h"
#include "engine/runtime/memory.h"

namespace ampd::runtime {

class LapTimer;
class StepLoop;
struct StepLoopConfig;

// A parameter's place in the flat arenas (masters, gradients, moments), in elements.
struct ArenaSlot {
  int64_t offset = 0;
  int64_t size = 0;
};

// One pass over the scaled gradients.
struct GradientCheck {
  bool finite = true;
  // First slot, in the order given, that holds a value that is not finite; -1 when finite.
  int32_t first_bad_slot = -1;
  // In that slot: a NaN stands first (true), or an infinity.
  bool first_bad_is_nan = false;
  // Sum of the squares of (gradient * factor), accumulated in double or better than fp32 pairwise; meaningless when not
  // finite.
  double sum_of_squares = 0;
  // Gradients that are exactly zero, over all slots.
  int64_t zeros = 0;
};

// Parameters that are updated alike; for LAMB a single one, for its norms are taken over the range.
struct UpdateRange {
  ArenaSlot slot;
  // Multiplies the scalars' learning rate.
  float learning_rate_scale = 1;
  // Takes the place of the config's.
  float weight_decay = 0;
};

struct UpdateArgs {
  optim::OptimizerConfig config;
  optim::UpdateScalars scalars;
  float* masters = nullptr;
  const float* gradients = nullptr;
  float* moment1 = nullptr;  // null where config.moments() < 1
  float* moment2 = nullptr;  // null where config.moments() < 2
  float* moment3 = nullptr;  // null where config.moments() < 3
  // Not overlapping; what lies in none stays as it is. Owned by the caller, and equal from step to step.
  absl::Span<const UpdateRange> ranges;
  // Not kF32: round each new master to this 16-bit dtype (`master_weights: false`).
  DType round_to = DType::kF32;
  // Not null: the running average of the masters, moved towards the new ones by average_weight, 1 - decay.
  float* average = nullptr;
  float average_weight = 0;
};

// Thread-compatible: one training uses one backend from one thread. Every pointer that a pass, a kernel or a published
// layout is given lies in memory().
class Backend {
 public:
  virtual ~Backend() = default;
  virtual absl::string_view name() const = 0;  // "cpu"
  virtual const KernelTable& kernels() const = 0;
  // Never null; the backend's, which outlives every buffer in it.
  virtual Memory* memory() const { return HostMemory(); }
  // Whether the backend's kernel for fused nodes can hold a step of this op.
  virtual bool CanFuse(ir::OpKind /*op*/) const { return false; }
  // What passes/join_products joins.
  virtual passes::JoinPolicy joins() const { return {}; }
  // Whether its matrix units read 8-bit operands one way round alone, as passes/turn_codes writes them.
  virtual bool turns_codes() const { return false; }
  // What passes/pad_for_tensor_cores pads products to.
  virtual passes::PaddingPolicy padding() const { return {}; }
  // `factor` unscales, 1 / loss scale. `slots` in backward order.
  virtual absl::Status CheckGradients(const float* gradients, absl::Span<const ArenaSlot> slots, float factor,
                                      GradientCheck* check) = 0;
  // Masters, moments and average after one applied step. INVALID_ARGUMENT when a moment is missing.
  virtual absl::Status Update(const UpdateArgs& args) = 0;
  // Dense copy of `size` elements of f32 in `dtype`.
  virtual absl::Status Publish(const float* masters, int64_t size, DType dtype, void* copy) = 0;
  // Copies the dense f32 tensor `from` of `shape` to the beginning of every dimension of `to`, dense of `padded`, and
  // writes zeros to the rest of it. Both have one rank, at least 1, and no extent of `padded` is less than `shape`'s.
  virtual absl::Status PadInto(const float* from, const Shape& shape, const Shape& padded, float* to) = 0;
  // Steps that the device takes by itself. UNIMPLEMENTED where it cannot; then the host decides every step.
  virtual absl::StatusOr<std::unique_ptr<StepLoop>> MakeStepLoop(const StepLoopConfig& config);
  // Times what is launched on the device, part by part; with `kernels` each kernel too, where that can be told. By
  // default the host's clock does.
  virtual absl::StatusOr<std::unique_ptr<LapTimer>> MakeLapTimer(bool kernels);
  // Whether any of `size` elements is not finite, and whether the first such is a NaN. Integers are finite.
  virtual absl::Status FindNonFinite(const TensorView& tensor, bool* found, bool* is_nan) = 0;
};

}  // namespace ampd::runtime

#endif  // AMPD_ENGINE_RUNTIME_BACKEND_H_
