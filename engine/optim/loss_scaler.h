// The loss scaler: which steps are applied, and how the scale moves. A pure transition over a small state.
#ifndef AMPD_ENGINE_OPTIM_LOSS_SCALER_H_
#define AMPD_ENGINE_OPTIM_LOSS_SCALER_H_

#include <cstdint>

namespace ampd::optim {

enum class LossScaleKind : uint8_t {
  kNone,     // the scale is 1
  kStatic,   // the scale is `init`; a step that overflows is still skipped
  kDynamic,  // falls when gradients overflow, rises after a run of clean steps
};

// The scale and its reciprocal are normal fp32 numbers within these.
inline constexpr float kSmallestScale = 0x1p-126f;
inline constexpr float kLargestScale = 0x1p126f;

// When the count of tolerated overflows starts anew.
enum class HysteresisRefill : uint8_t {
  kOnAppliedStep,  // only overflows without an applied step between them use it up
  kOnGrowth,       // after growth_interval good steps, with the scale's growth (or where max holds it): as Megatron-LM
};

// What becomes of the training when the scale would have to fall below `min`.
enum class OnFloor : uint8_t { kFail, kHold, kFallbackBf16, kRollback };

// Constants of a phase. Defaults are PyTorch's GradScaler's, and Megatron's for hysteresis.
struct LossScaleConfig {
  LossScaleKind kind = LossScaleKind::kNone;
  double init = 65536;
  double growth_factor = 2;        // > 1
  double backoff_factor = 0.5;     // in (0, 1)
  int64_t growth_interval = 2000;  // >= 1
  double min = 1;
  double max = 0x1p126;
  int64_t hysteresis = 1;  // >= 1
  HysteresisRefill hysteresis_refill = HysteresisRefill::kOnAppliedStep;
  OnFloor on_floor = OnFloor::kFail;
  int64_t max_rollbacks = 3;  // >= 1; for kRollback
};

// Everything the scaler remembers; saved in checkpoints.
struct LossScalerState {
  float scale = 1;
  // Applied steps in a row since the scale last grew or a step was skipped.
  int64_t good_steps = 0;
  // Overflows until the scale is lowered: at the one that makes it 0, and at each while it is 0.
  int64_t hysteresis_left = 1;
  int64_t steps_applied = 0;
  int64_t steps_skipped = 0;
  // Attempted step, from 1, of the newest skip; 0: none.
  int64_t last_overflow_step = 0;
  // Times the training returned to a checkpoint from the floor.
  int64_t rollbacks = 0;
  // The phase left its mode for BF16, for good.
  bool fell_back = false;

  bool operator==(const LossScalerState&) const = default;
};

struct StepOutcome {
  bool loss_finite = true;
  bool gradients_finite = true;
};

// The last three are skips at the floor: the scale would have to fall below `min`.
enum class ScalerDecision : uint8_t {
  kApply,
  kSkip,
  kFail,      // the training has diverged
  kFallBack,  // go on in BF16; then FallBack()
  kRollBack,  // return to the last good checkpoint; then RollBack()
};

// Before the first step.
LossScalerState InitialScalerState(const LossScaleConfig& config);

// What becomes of attempted step `step` (from 1), and the state after it:
//  - all finite: applied. Dynamic: after growth_interval good steps in a row the scale is multiplied by growth_factor,
//    never above max (the product is taken in double and cannot overflow). hysteresis_left is refilled as
//    hysteresis_refill says.
//  - loss not finite: skipped. No scale cures that, so scale and hysteresis stay.
//  - gradients not finite, loss finite: skipped. Dynamic: hysteresis_left falls by one; once it is 0, each overflow
//    multiplies the scale by backoff_factor, never below min (and by no less than one unit in the last place). At min
//    already, on_floor decides: kFail; kHold gives kSkip; kFallbackBf16 gives kFallBack; kRollback gives kRollBack, or
//    kFail after max_rollbacks of them. The scale stays at min in each case.
// A skip of any kind sets good_steps to 0: growth asks for applied steps in a row, and values that overflow the forward
// pass are no sign that there is room for a larger scale. A static scale and none never move and know no floor.
ScalerDecision Update(const LossScaleConfig& config, const StepOutcome& outcome, int64_t step, LossScalerState* state);

// The state from which a phase goes on in BF16: no scaling, and the counts as they are.
void FallBack(LossScalerState* state);

// `state` is what the checkpoint held (or the initial one), `before` the state at the floor: the scale starts at init
// with a fresh hysteresis, and one more rollback is counted.
void RollBack(const LossScaleConfig& config, const LossScalerState& before, LossScalerState* state);

}  // namespace ampd::optim

#endif  // AMPD_ENGINE_OPTIM_LOSS_SCALER_H_
