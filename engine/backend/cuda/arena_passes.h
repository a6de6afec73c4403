// Passes over the flat arenas of masters, gradients, moments and state: check and norm, clip and update and publish.
// Everything they decide on lies in device memory, so that they run in a captured step as in a step that the host
// decides.
#ifndef AMPD_ENGINE_BACKEND_CUDA_ARENA_PASSES_H_
#define AMPD_ENGINE_BACKEND_CUDA_ARENA_PASSES_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/device_memory.h"
#include "engine/runtime/backend.h"
#include "engine/runtime/model_memory.h"

namespace ampd::cuda {

// What a check found. Plain; in device memory.
struct CheckResult {
  runtime::GradientCheck gradients;
  // The first pending state (in the order given) that holds a value that is not finite, and whether a NaN stands first
  // there; -1: none.
  int32_t first_bad_state = -1;
  bool first_bad_state_is_nan = false;
};

// What an update follows. Plain; in device memory.
struct UpdateControl {
  // 0: nothing changes.
  int32_t apply = 0;
  optim::UpdateScalars scalars;
};

// A tensor of f32 state to be checked.
struct StateSlot {
  const float* data = nullptr;
  int64_t size = 0;
};

// One pass over scaled gradients and pending state. Sums are in double, in an order that only the sizes decide.
class GradientCheckPass {
 public:
  // Of `gradients` at `slots`, in backward order, and of `states`. Allocates and uploads its lists.
  static absl::StatusOr<std::unique_ptr<GradientCheckPass>> Create(Context* context, const float* gradients,
                                                                   absl::Span<const runtime::ArenaSlot> slots,
                                                                   absl::Span<const StateSlot> states);
  // `factor`: in device memory; gradients are multiplied by it for the norm. Only enqueues.
  absl::Status Enqueue(const float* factor, CheckResult* result) const;

 private:
  explicit GradientCheckPass(Context* context) : context_(context) {}

  Context* const context_;
  int64_t blocks_ = 0;
  DeviceArray list_, partials_;
};

// A 16-bit copy of a parameter, written with its update.
struct DenseCopy {
  runtime::ArenaSlot slot;
  DType dtype = DType::kF16;
  void* copy = nullptr;
  // Elements of the parameter's rows, and from one row of the copy to the next: more, where the copy is padded.
  int32_t columns = 1;
  int32_t copy_columns = 1;
};

// `copy` of one of `layout`'s parameters, in `published`; nullopt where an update cannot write it on its way.
absl::optional<DenseCopy> AsDenseCopy(const runtime::ModelLayout& layout, const runtime::ModelLayout::Copy& copy,
                                      char* published);

// One pass over masters and moments (LAMB: two, and a small one between).
class UpdatePass {
 public:
  // `args.scalars` are not looked at; its pointers are the device's. Each copy lies within one range. INVALID_ARGUMENT
  // when a moment is missing.
  static absl::StatusOr<std::unique_ptr<UpdatePass>> Create(Context* context, const runtime::UpdateArgs& args,
                                                            absl::Span<const DenseCopy> copies);
  // `control` is in device memory. Only enqueues.
  absl::Status Enqueue(const UpdateControl* control) const;

 private:
  UpdatePass(Context* context, const runtime::UpdateArgs& args) : context_(context), args_(args) {}
  absl::Status EnqueueLamb(const UpdateControl* control) const;

  Context* const context_;
  // ranges are not used after Create().
  runtime::UpdateArgs args_;
  int64_t blocks_ = 0;
  int64_t ranges_count_ = 0;
  DeviceArray list_, ranges_;
  // LAMB's: of entries, then of ranges; and of which entries a range's are.
  DeviceArray norms_, range_begins_;
};

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_ARENA_PASSES_H_
