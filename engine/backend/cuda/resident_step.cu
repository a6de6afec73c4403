#include "engine/backend/cuda/resident_step.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/device_memory.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/resident_kernel.h"
#include "engine/backend/cuda/resident_stack.h"
#include "engine/core/status.h"
#include "engine/runtime/zero_constants.h"

namespace ampd::cuda {
namespace {

// The parts of a plan's arena that tensors lie in, without what only kernels' workspaces use, or lies within `stack`.
class ArenaParts {
 public:
  ArenaParts(const runtime::Plan& plan, const ResidentStack* stack) {
    std::map<int64_t, int64_t> ends;
    const auto note = [&](const runtime::PlannedTensor& tensor) {
      if (tensor.space != runtime::Space::kArena) return;
      int64_t& end = ends[tensor.offset];
      end = std::max(end, tensor.offset + std::max<int64_t>(1, runtime::BytesOf(tensor)));
    };
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      if (stack != nullptr && stack->holds[s]) continue;
      for (const runtime::PlannedTensor& tensor : plan.steps[s].inputs) note(tensor);
      for (const runtime::PlannedTensor& tensor : plan.steps[s].outputs) note(tensor);
    }
    if (stack != nullptr) {
      for (const runtime::PlannedTensor* tensor : {stack->input, stack->output, stack->output_grad}) note(*tensor);
    }
    for (const auto& [name, tensor] : plan.outputs) note(tensor);
    for (const auto& [begin, end] : ends) {
      if (!parts_.empty() && begin < parts_.back().end) {
        parts_.back().end = std::max(parts_.back().end, end);
      } else {
        parts_.push_back({begin, end, 0});
      }
    }
  }
  void Place(WorkspaceLayout* layout) {
    for (Part& part : parts_) part.offset = layout->Add(part.end - part.begin);
  }
  int64_t OffsetOf(int64_t arena_offset) const {
    const auto part = std::find_if(parts_.begin(), parts_.end(),
                                   [&](const Part& p) { return arena_offset >= p.begin && arena_offset < p.end; });
    return part->offset + arena_offset - part->begin;
  }

 private:
  struct Part {
    int64_t begin, end, offset;
  };
  std::vector<Part> parts_;
};

absl::Status No(absl::string_view why) { return absl::UnimplementedError(absl::StrCat("[resident step] ", why)); }

class CudaResidentStep : public ResidentStep {
 public:
  explicit CudaResidentStep(Context* context) : context_(context) {}

  static absl::Status CheckJob(const runtime::StepLoopConfig& config) {
    if (config.phases.size() != 1) return No("several phases");
    const runtime::StepLoopPhase& phase = config.phases.front();
    if (phase.executors.size() != 1) return No("several buckets");
    if (config.micro_batches != 1) return No("several micro-batches");
    if (!config.memory->layout().states().empty()) return No("untrained state");
    if (phase.update.config.kind == optim::OptimizerKind::kLamb) return No("LAMB");
    std::set<int32_t> copied;
    for (const runtime::ModelLayout::Copy& copy : config.memory->layout().copies()) {
      if (!AsDenseCopy(config.memory->layout(), copy, config.memory->published())) {
        return No(absl::StrCat("a copy laid out as ", copy.layout.key));
      }
      if (!copied.insert(copy.parameter).second) return No("two copies of a parameter");
    }
    return absl::OkStatus();
  }

  // Of a job that CheckJob() takes.
  absl::Status Make(const runtime::StepLoopConfig& config, const ResidentStack* stack, const ResidentLoop& loop) {
    const runtime::StepLoopPhase& phase = config.phases.front();
    const runtime::Plan& plan = phase.executors.front()->plan();
    ArenaParts arena(plan, stack);
    together_ = stack != nullptr;
    PlaceAll(config, &arena);
    if (stack != nullptr) step_.fragments = layout_.Add(stack->fragment_bytes());
    // Before anything is made for a network that is far too large.
    AMPD_RETURN_IF_ERROR(CheckRoom());
    AMPD_RETURN_IF_ERROR(UploadConstants(plan));
    const AddressOf address = [&](const runtime::PlannedTensor& tensor) {
      return AddressIn(plan, arena, loop, tensor);
    };
    AMPD_ASSIGN_OR_RETURN(ResidentProgram program, CompileResident(plan, stack, address));
    step_.interprets = program.interprets;
    step_.begins_first = program.instructions.empty() || program.instructions[0].op != ResidentOp::kStackForward;
    step_.scratch = layout_.Add(program.scratch_bytes);
    AMPD_RETURN_IF_ERROR(CheckRoom());
    const auto loss = plan.outputs.find("loss");
    if (loss == plan.outputs.end()) return No("the plan has no loss");
    AMPD_ASSIGN_OR_RETURN(void* const at, address(loss->second));
    step_.loss = static_cast<const float*>(at);
    Take(loop, config.seed);
    AMPD_RETURN_IF_ERROR(UploadLists(program, phase, config.memory->layout()));
    AMPD_RETURN_IF_ERROR(CheckRoom());
    PlaceBatches();
    // The kernel's limit is one for all loops of the process.
    return AllowResidentSteps(MostShared());
  }

  bool takes_layers_together() const override { return together_; }
  absl::Status Enqueue(int64_t steps) const override {
    return EnqueueResidentSteps(context_->stream(), step_, steps, layout_.bytes());
  }
  absl::Status EnqueueTrial(int64_t steps) const override {
    ResidentSteps trial = step_;
    trial.runs_halted = true;
    return EnqueueResidentSteps(context_->stream(), trial, steps, layout_.bytes());
  }

 private:
  absl::Status CheckRoom() const {
    if (layout_.bytes() <= MostShared()) return absl::OkStatus();
    return No(absl::StrCat(layout_.bytes() + kResidentReductionBytes,
                           " bytes of shared memory or more, the device has ",
                           context_->properties().shared_bytes_per_block));
  }

  int64_t Keep(void* global, int64_t bytes) {
    const int64_t offset = layout_.Add(bytes);
    if (bytes > 0) {
      step_.arenas[step_.arena_count++] = {static_cast<char*>(global), offset, AlignUp(bytes), /*changes=*/true};
    }
    return offset;
  }

  // Everything that outlives a step, and what is made in it.
  void PlaceAll(const runtime::StepLoopConfig& config, ArenaParts* arena) {
    runtime::ModelMemory* memory = config.memory;
    const runtime::UpdateArgs& update = config.phases.front().update;
    const int64_t bytes = memory->layout().arena_elements() * static_cast<int64_t>(sizeof(float));
    layout_.Add(sizeof(ResidentHeader));
    const auto keep = [&](float* data) { return data == nullptr ? nullptr : InShared<float>(Keep(data, bytes)); };
    masters_ = Keep(memory->masters(), bytes);
    gradients_ = layout_.Add(bytes);
    published_ = Keep(memory->published(), memory->layout().published_bytes());
    step_.gradients = InShared<float>(gradients_);
    step_.gradient_floats = static_cast<int32_t>(memory->layout().arena_elements());
    step_.optimizer = update.config;
    step_.update = UpdateArenasOf(update);
    step_.update.masters = InShared<float>(masters_);
    step_.update.gradients = step_.gradients;
    step_.update.moment1 = keep(update.moment1);
    step_.update.moment2 = keep(update.moment2);
    step_.update.moment3 = keep(update.moment3);
    step_.update.average = keep(update.average);
    arena->Place(&layout_);
  }

  absl::StatusOr<void*> AddressIn(const runtime::Plan& plan, const ArenaParts& arena, const ResidentLoop& loop,
                                  const runtime::PlannedTensor& tensor) const {
    switch (tensor.space) {
      case runtime::Space::kArena:
        return InShared(arena.OffsetOf(tensor.offset));
      case runtime::Space::kMaster:
        return InShared(masters_ + tensor.offset);
      case runtime::Space::kGradient:
        return InShared(gradients_ + tensor.offset);
      case runtime::Space::kPublished:
        return InShared(published_ + tensor.offset);
      case runtime::Space::kLossSeed:
        return InShared(
            static_cast<int64_t>(offsetof(ResidentHeader, state) + offsetof(runtime::StepState, loss_seed)));
      case runtime::Space::kInput: {
        const absl::optional<int64_t> offset = loop.input_offset(plan.inputs[static_cast<size_t>(tensor.offset)].name);
        if (!offset) return No(absl::StrCat("input ", tensor.name, " is not fed"));
        return InSlot(*offset);
      }
      case runtime::Space::kConstant:
        return constants_[static_cast<size_t>(tensor.offset)].as<void>();
      case runtime::Space::kState:
      case runtime::Space::kPendingState:
        break;
    }
    return No(absl::StrCat("tensor ", tensor.name, " is untrained state"));
  }

  // They are read where they are: they are few, and stay in the first-level cache.
  absl::Status UploadConstants(const runtime::Plan& plan) {
    const AlignedBuffer zeros(runtime::ZeroConstantBytes(plan));
    for (const std::shared_ptr<const Tensor>& constant : plan.constants) {
      const TensorView view =
          constant == nullptr ? TensorView{zeros.data(), DType::kU8, {zeros.bytes()}} : constant->view();
      AMPD_ASSIGN_OR_RETURN(DeviceArray array,
                            DeviceArray::Upload(context_, view.data, view.bytes(), "a resident step's constants"));
      constants_.push_back(std::move(array));
    }
    return absl::OkStatus();
  }

  void Take(const ResidentLoop& loop, uint64_t seed) {
    step_.control = loop.control;
    step_.phase = loop.phase;
    step_.ring = loop.ring;
    step_.decision = loop.decision;
    step_.records = loop.records;
    step_.seed = seed;
  }

  int64_t MostShared() const { return context_->properties().shared_bytes_per_block - kResidentReductionBytes; }

  // Behind the lists that are there; returns where.
  template <typename T>
  int64_t AddList(const std::vector<T>& values) {
    const size_t at = lists_.size(), bytes = values.size() * sizeof(T);
    lists_.resize(at + static_cast<size_t>(AlignUp(static_cast<int64_t>(bytes))));
    if (bytes > 0) std::memcpy(lists_.data() + at, values.data(), bytes);
    return static_cast<int64_t>(at);
  }

  // Elements of an arena that a warp takes at a time: of small arenas so few that every warp has some.
  static int32_t PieceOf(int64_t elements) {
    constexpr int64_t kLanes = 32, kMostElements = 512;
    return static_cast<int32_t>(std::clamp(elements / kResidentThreads * kLanes, kLanes, kMostElements));
  }

  // Where there is room: else a step reads its batch where it is.
  void PlaceBatches() {
    const int64_t slot = step_.ring.bytes_per_slot;
    const bool fits = slot % 16 == 0 && layout_.bytes() + AlignUp(2 * slot) <= MostShared();
    step_.batches = fits ? layout_.Add(2 * slot) : -1;
  }

  // Whether an entry is what pads the arena between two parameters, which nobody reads.
  static bool IsBetween(const runtime::ModelLayout& layout, const UpdateEntry& entry) {
    return std::none_of(layout.slots().begin(), layout.slots().end(), [&](const runtime::ArenaSlot& slot) {
      return entry.offset < slot.offset + slot.size && slot.offset < entry.offset + entry.size;
    });
  }

  absl::Status UploadLists(const ResidentProgram& program, const runtime::StepLoopPhase& phase,
                           const runtime::ModelLayout& layout) {
    std::vector<DenseCopy> copies;
    for (const runtime::ModelLayout::Copy& copy : layout.copies()) {
      copies.push_back(*AsDenseCopy(layout, copy, InShared<char>(published_)));
    }
    const int32_t piece = PieceOf(layout.arena_elements());
    std::vector<ResidentGradient> gradients;
    for (size_t s = 0; s < phase.slots.size(); ++s) {
      const runtime::ArenaSlot& slot = phase.slots[s];
      for (int64_t first = 0; first < slot.size; first += piece) {
        gradients.push_back({slot.offset + first, static_cast<int32_t>(std::min<int64_t>(piece, slot.size - first)),
                             static_cast<int32_t>(s), static_cast<int32_t>(first)});
      }
    }
    std::vector<UpdateEntry> entries;
    for (UpdateEntry entry : UpdateEntriesOf(phase.update.ranges, copies)) {
      if (IsBetween(layout, entry)) continue;
      for (int32_t left = entry.size; left > 0; left -= piece) {
        entry.size = std::min(piece, left);
        entries.push_back(entry);
        entry.offset += piece;
        entry.first += piece;
      }
    }
    step_.instruction_count = static_cast<int32_t>(program.instructions.size());
    step_.gradient_piece_count = static_cast<int32_t>(gradients.size());
    step_.entry_count = static_cast<int32_t>(entries.size());
    const int64_t instructions_at = AddList(program.instructions), operands_at = AddList(program.operands);
    const int64_t pieces_at = AddList(gradients), entries_at = AddList(entries);
    const int64_t rules_at = AddList(RulesOf(phase.update.ranges));
    const auto bytes = static_cast<int64_t>(lists_.size());
    AMPD_ASSIGN_OR_RETURN(list_memory_, DeviceArray::Upload(context_, lists_.data(), bytes, "a resident step's lists"));
    // The kernel that interprets has long lists, and reads them where they are if there is no room.
    const bool shared = !program.interprets || layout_.bytes() + bytes <= MostShared();
    const int64_t lists_at = shared ? layout_.Add(bytes) : 0;
    if (shared) step_.arenas[step_.arena_count++] = {list_memory_.as<char>(), lists_at, bytes, /*changes=*/false};
    const auto place = [&]<typename T>(int64_t at, const T** list) {
      *list = shared ? InShared<T>(lists_at + at) : reinterpret_cast<const T*>(list_memory_.as<char>() + at);
    };
    place(instructions_at, &step_.instructions);
    place(operands_at, &step_.operands);
    place(pieces_at, &step_.gradient_pieces);
    place(entries_at, &step_.entries);
    place(rules_at, &step_.rules);
    return absl::OkStatus();
  }

  Context* const context_;
  WorkspaceLayout layout_;  // of shared memory
  int64_t masters_ = 0, gradients_ = 0, published_ = 0;
  ResidentSteps step_ = {};
  bool together_ = false;
  std::vector<char> lists_;
  DeviceArray list_memory_;
  std::vector<DeviceArray> constants_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ResidentStep>> ResidentStep::Create(Context* context,
                                                                   const runtime::StepLoopConfig& config,
                                                                   const ResidentLoop& loop) {
  AMPD_RETURN_IF_ERROR(CudaResidentStep::CheckJob(config));
  const absl::optional<ResidentStack> stack = FindResidentStack(config.phases.front().executors.front()->plan());
  if (stack && !loop.interpret_all) {
    auto step = std::make_unique<CudaResidentStep>(context);
    const absl::Status status = step->Make(config, &*stack, loop);
    if (status.ok()) return std::unique_ptr<ResidentStep>(std::move(step));
    // What has no room for it may have some without. Other errors are none of the network's, and would be here, too: a
    // resumed job has to compute as it did.
    if (!absl::IsUnimplemented(status)) return status;
  }
  auto step = std::make_unique<CudaResidentStep>(context);
  AMPD_RETURN_IF_ERROR(step->Make(config, nullptr, loop));
  return std::unique_ptr<ResidentStep>(std::move(step));
}

}  // namespace ampd::cuda
