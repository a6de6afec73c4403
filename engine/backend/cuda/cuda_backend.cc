#include "engine/backend/cuda_backend.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/conv.h"
#include "engine/backend/cuda/cuda_backend_impl.h"
#include "engine/backend/cuda/fused.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/lap_timer.h"
#include "engine/backend/cuda/step_loop.h"
#include "engine/core/status.h"

namespace ampd {

absl::StatusOr<std::unique_ptr<runtime::Backend>> MakeCudaBackend(const std::string& uuid,
                                                                  const std::string& autotune_dir) {
  absl::StatusOr<std::unique_ptr<cuda::Context>> context = cuda::Context::Open(uuid);
  if (!context.ok()) return Annotate(context.status(), "CUDA backend");
  (*context)->set_autotune(std::make_unique<cuda::AutotuneCache>(autotune_dir));
  return std::make_unique<cuda::CudaBackend>(*std::move(context));
}

namespace {

// What a kernel may ask for of a multiprocessor's shared memory, and what that has, by compute capability: the table of
// technical specifications in CUDA's programming guide.
struct SharedMemory {
  int capability;
  int64_t block_kib, multiprocessor_kib;
};
constexpr SharedMemory kSharedMemory[] = {{70, 96, 96},    {75, 64, 64},    {80, 163, 164}, {86, 99, 100},
                                          {87, 163, 164},  {89, 99, 100},   {90, 227, 228}, {100, 227, 228},
                                          {103, 227, 228}, {110, 227, 228}, {120, 99, 100}, {121, 99, 100}};

}  // namespace

absl::StatusOr<std::unique_ptr<runtime::Backend>> MakeCudaPlanner(const AbsentGpu& gpu) {
  if (CudaPlanLibrary().empty()) return absl::UnimplementedError("built without cuDNN");
  if (gpu.multiprocessors <= 0 || gpu.l2_bytes <= 0 || gpu.memory_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("multiprocessors, l2_bytes and memory_bytes of ", gpu.name, " are not all known"));
  }
  cuda::DeviceProperties properties;
  properties.name = gpu.name;
  properties.major = gpu.compute_capability_major;
  properties.minor = gpu.compute_capability_minor;
  properties.sm_count = gpu.multiprocessors;
  properties.l2_bytes = gpu.l2_bytes;
  properties.memory_bytes = gpu.memory_bytes;
  const auto shared = std::find_if(std::begin(kSharedMemory), std::end(kSharedMemory),
                                   [&](const SharedMemory& s) { return s.capability == properties.capability(); });
  if (shared == std::end(kSharedMemory)) {
    return absl::InvalidArgumentError(absl::StrCat("nothing is known of compute capability ", properties.major, ".",
                                                   properties.minor, ", which ", gpu.name, " has"));
  }
  properties.shared_bytes_per_block = shared->block_kib << 10;
  properties.shared_bytes_per_sm = shared->multiprocessor_kib << 10;
  return std::make_unique<cuda::CudaBackend>(std::make_unique<cuda::Context>(std::move(properties)));
}

std::string CudaPlanLibrary() { return cuda::ConvLibraryName(); }
std::string CudaPlanLibraryFolder() { return cuda::ConvLibraryFolder(); }

namespace cuda {
namespace {

// Lists kept for as many callers; a training has one a phase.
constexpr size_t kKept = 16;

template <typename T>
T* Keep(std::vector<T>* kept, T value) {
  if (kept->size() >= kKept) kept->erase(kept->begin());
  kept->push_back(std::move(value));
  return &kept->back();
}

bool SameSlot(const runtime::ArenaSlot& a, const runtime::ArenaSlot& b) {
  return a.offset == b.offset && a.size == b.size;
}

bool SameRange(const runtime::UpdateRange& a, const runtime::UpdateRange& b) {
  return SameSlot(a.slot, b.slot) && a.learning_rate_scale == b.learning_rate_scale && a.weight_decay == b.weight_decay;
}

bool SameConfig(const optim::OptimizerConfig& a, const optim::OptimizerConfig& b) {
  return a.kind == b.kind && a.momentum == b.momentum && a.dampening == b.dampening && a.nesterov == b.nesterov &&
         a.weight_decay == b.weight_decay && a.beta1 == b.beta1 && a.beta2 == b.beta2 && a.epsilon == b.epsilon &&
         a.smoothing == b.smoothing && a.centered == b.centered && a.rate_decay == b.rate_decay &&
         a.clip_value == b.clip_value;
}

bool SameArenas(const runtime::UpdateArgs& a, const runtime::UpdateArgs& b) {
  return a.masters == b.masters && a.gradients == b.gradients && a.moment1 == b.moment1 && a.moment2 == b.moment2 &&
         a.moment3 == b.moment3 && a.average == b.average && a.average_weight == b.average_weight &&
         a.round_to == b.round_to;
}

}  // namespace

CudaBackend::CudaBackend(std::unique_ptr<Context> context) : context_(std::move(context)), memory_(context_.get()) {
  RegisterCudaKernels(&kernels_, context_.get());
}

bool CudaBackend::CanFuse(ir::OpKind op) const { return cuda::CanFuse(op); }

absl::StatusOr<CudaBackend::Scratch*> CudaBackend::DeviceScratch() {
  if (!has_scratch_) {
    AMPD_ASSIGN_OR_RETURN(scratch_, DeviceArray::Allocate(sizeof(Scratch), "scratch of passes"));
    has_scratch_ = true;
  }
  return scratch_.as<Scratch>();
}

absl::StatusOr<GradientCheckPass*> CudaBackend::CheckPassFor(const float* gradients,
                                                             absl::Span<const runtime::ArenaSlot> slots) {
  for (const KeptCheck& kept : checks_) {
    if (kept.gradients == gradients &&
        std::equal(slots.begin(), slots.end(), kept.slots.begin(), kept.slots.end(), SameSlot)) {
      return kept.pass.get();
    }
  }
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<GradientCheckPass> pass,
                        GradientCheckPass::Create(context_.get(), gradients, slots, {}));
  return Keep(&checks_, {gradients, {slots.begin(), slots.end()}, std::move(pass)})->pass.get();
}

absl::Status CudaBackend::CheckGradients(const float* gradients, absl::Span<const runtime::ArenaSlot> slots,
                                         float factor, runtime::GradientCheck* check) {
  AMPD_ASSIGN_OR_RETURN(Scratch * scratch, DeviceScratch());
  AMPD_ASSIGN_OR_RETURN(GradientCheckPass * pass, CheckPassFor(gradients, slots));
  AMPD_RETURN_IF_ERROR(memory_.Upload(&factor, sizeof(factor), &scratch->factor));
  AMPD_RETURN_IF_ERROR(pass->Enqueue(&scratch->factor, &scratch->check));
  return memory_.Download(&scratch->check.gradients, sizeof(*check), check);
}

absl::Status CudaBackend::FindNonFinite(const TensorView& tensor, bool* found, bool* is_nan) {
  *found = *is_nan = false;
  if (!IsFloat(tensor.dtype)) return absl::OkStatus();
  AMPD_ASSIGN_OR_RETURN(Scratch * scratch, DeviceScratch());
  AMPD_RETURN_IF_ERROR(cuda::FindNonFinite(context_.get(), tensor.data, tensor.size(), tensor.dtype, &scratch->find));
  NonFiniteFind find;
  AMPD_RETURN_IF_ERROR(memory_.Download(&scratch->find, sizeof(find), &find));
  *found = find.index >= 0;
  *is_nan = find.is_nan;
  return absl::OkStatus();
}

absl::StatusOr<UpdatePass*> CudaBackend::UpdatePassFor(const runtime::UpdateArgs& args) {
  for (const KeptUpdate& kept : updates_) {
    if (SameArenas(kept.args, args) && SameConfig(kept.args.config, args.config) &&
        std::equal(args.ranges.begin(), args.ranges.end(), kept.ranges.begin(), kept.ranges.end(), SameRange)) {
      return kept.pass.get();
    }
  }
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<UpdatePass> pass, UpdatePass::Create(context_.get(), args, {}));
  return Keep(&updates_, {args, {args.ranges.begin(), args.ranges.end()}, std::move(pass)})->pass.get();
}

absl::Status CudaBackend::Update(const runtime::UpdateArgs& args) {
  AMPD_ASSIGN_OR_RETURN(Scratch * scratch, DeviceScratch());
  AMPD_ASSIGN_OR_RETURN(UpdatePass * pass, UpdatePassFor(args));
  const UpdateControl control = {1, args.scalars};
  AMPD_RETURN_IF_ERROR(memory_.Upload(&control, sizeof(control), &scratch->update));
  return pass->Enqueue(&scratch->update);
}

absl::StatusOr<std::unique_ptr<runtime::StepLoop>> CudaBackend::MakeStepLoop(const runtime::StepLoopConfig& config) {
  return cuda::MakeStepLoop(context_.get(), config);
}

absl::StatusOr<std::unique_ptr<runtime::LapTimer>> CudaBackend::MakeLapTimer(bool kernels) {
  return cuda::MakeLapTimer(context_.get(), kernels);
}

}  // namespace cuda
}  // namespace ampd
