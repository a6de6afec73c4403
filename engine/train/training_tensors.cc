#include "engine/train/training_tensors.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/train/disk_layout.h"
#include "engine/train/failure.h"

namespace ampd::train {
namespace {

// A tensor in memory and what it is called on disk.
struct Slot {
  std::string name;
  const ir::Persistent* tensor;
  void* data;
};

// `masters`: the memory's own, or an arena like it.
std::vector<Slot> ModelSlots(runtime::ModelMemory* memory, float* masters) {
  const runtime::ModelLayout& layout = memory->layout();
  std::vector<Slot> slots;
  for (size_t i = 0; i < layout.parameters().size(); ++i) {
    const ir::Persistent& parameter = layout.parameters()[i];
    slots.push_back({parameter.name, &parameter, masters + layout.slots()[i].offset});
  }
  for (size_t i = 0; i < layout.states().size(); ++i) {
    const ir::Persistent& state = layout.states()[i];
    if (state.in_model_file) slots.push_back({state.name, &state, memory->state() + layout.state_offsets()[i]});
  }
  return slots;
}

std::vector<Slot> PrivateSlots(runtime::ModelMemory* memory) {
  const runtime::ModelLayout& layout = memory->layout();
  std::vector<Slot> slots;
  for (size_t i = 0; i < layout.states().size(); ++i) {
    const ir::Persistent& state = layout.states()[i];
    if (!state.in_model_file) slots.push_back({state.name, &state, memory->state() + layout.state_offsets()[i]});
  }
  return slots;
}

std::string MomentName(const PhaseMoments& phase, const ir::Persistent& parameter, size_t moment) {
  return absl::StrCat(phase.prefix, parameter.name, ".m", moment + 1);
}

std::vector<Slot> MomentSlots(const runtime::ModelLayout& layout, const std::vector<PhaseMoments>& moments) {
  std::vector<Slot> slots;
  for (const PhaseMoments& phase : moments) {
    for (int32_t i : phase.parameters) {
      const ir::Persistent& parameter = layout.parameters()[i];
      for (size_t m = 0; m < phase.arenas.size(); ++m) {
        slots.push_back({MomentName(phase, parameter, m), &parameter, phase.arenas[m] + layout.slots()[i].offset});
      }
    }
  }
  return slots;
}

std::vector<Slot> OptimizerSlots(runtime::ModelMemory* memory, const std::vector<PhaseMoments>& moments) {
  std::vector<Slot> slots = MomentSlots(memory->layout(), moments);
  for (Slot& slot : PrivateSlots(memory)) slots.push_back(std::move(slot));
  return slots;
}

std::vector<TensorSource> Sources(runtime::Memory* memory, const std::vector<Slot>& slots) {
  // One buffer serves all: a source's bytes are read before the next is asked.
  struct Scratch {
    AlignedBuffer staging;
    std::string bytes;
  };
  auto scratch = std::make_shared<Scratch>();
  std::vector<TensorSource> sources;
  for (const Slot& slot : slots) {
    const auto bytes = [slot, scratch, memory]() -> absl::StatusOr<absl::string_view> {
      const ir::TensorType& type = slot.tensor->type;
      AMPD_ASSIGN_OR_RETURN(const TensorView values,
                            runtime::OnHost(memory, {slot.data, type.dtype, type.shape}, &scratch->staging));
      if (slot.tensor->layout == ir::DiskLayout::kSame) {
        return absl::string_view(static_cast<const char*>(values.data), static_cast<size_t>(values.bytes()));
      }
      scratch->bytes.resize(static_cast<size_t>(values.bytes()));
      ToDisk(*slot.tensor, values.data, scratch->bytes.data());
      return absl::string_view(scratch->bytes);
    };
    sources.push_back({slot.name, slot.tensor->type.dtype, DiskShape(*slot.tensor), bytes});
  }
  return sources;
}

absl::Status CheckEntry(const Safetensors& file, const Slot& slot) {
  const auto it = file.entries().find(slot.name);
  if (it == file.entries().end()) return DoesNotFit(absl::StrCat("no tensor '", slot.name, "'"));
  const Safetensors::Entry& entry = it->second;
  const Shape expected = DiskShape(*slot.tensor);
  if (entry.dtype != slot.tensor->type.dtype || entry.shape != expected) {
    return DoesNotFit(absl::StrCat("tensor '", slot.name, "' is ", DTypeName(entry.dtype), " ",
                                   ShapeString(entry.shape), ", the model's is ", DTypeName(slot.tensor->type.dtype),
                                   " ", ShapeString(expected)));
  }
  return absl::OkStatus();
}

// `spare`: what the file may hold besides.
absl::Status Load(const Safetensors& file, runtime::Memory* memory, const std::vector<Slot>& slots,
                  const std::function<bool(const std::string&)>& spare) {
  std::set<absl::string_view> known;
  for (const Slot& slot : slots) {
    AMPD_RETURN_IF_ERROR(CheckEntry(file, slot));
    known.insert(slot.name);
  }
  for (const auto& [name, entry] : file.entries()) {
    if (known.count(name) > 0 || spare(name)) continue;
    return DoesNotFit(absl::StrCat("tensor '", name, "' is none of the model's ", slots.size(), ", the file has ",
                                   file.entries().size()));
  }
  for (const Slot& slot : slots) {
    const absl::string_view bytes = file.Bytes(file.entries().at(slot.name));
    AMPD_RETURN_IF_ERROR(runtime::WriteFromHost(memory, slot.data, static_cast<int64_t>(bytes.size()),
                                                [&](void* to) { FromDisk(*slot.tensor, bytes.data(), to); }));
  }
  return absl::OkStatus();
}

bool NothingIsSpare(const std::string&) { return false; }

// Of parameters that no phase with this prefix trains. Earlier builds kept them for layers that nobody reads.
std::set<std::string> SpareMoments(const runtime::ModelLayout& layout, const std::vector<PhaseMoments>& moments) {
  std::set<std::string> spare;
  for (const PhaseMoments& phase : moments) {
    const std::set<int32_t> trained(phase.parameters.begin(), phase.parameters.end());
    for (size_t i = 0; i < layout.parameters().size(); ++i) {
      if (trained.count(static_cast<int32_t>(i)) > 0) continue;
      for (size_t m = 0; m < phase.arenas.size(); ++m) {
        spare.insert(MomentName(phase, layout.parameters()[i], m));
      }
    }
  }
  return spare;
}

}  // namespace

absl::StatusOr<Moments> Moments::Create(const runtime::ModelLayout& layout, int count, runtime::Memory* memory) {
  Moments moments(&layout, memory);
  for (int i = 0; i < count; ++i) {
    AMPD_ASSIGN_OR_RETURN(runtime::Buffer arena,
                          runtime::Buffer::Allocate(memory, layout.arena_elements() * SizeOf(DType::kF32), "moments"));
    moments.arenas_.push_back(std::move(arena));
  }
  return moments;
}

absl::Status Moments::Fill(int i, const std::vector<int32_t>& parameters, float value) {
  for (int32_t parameter : parameters) {
    const runtime::ArenaSlot& slot = layout_->slots()[parameter];
    AMPD_RETURN_IF_ERROR(
        runtime::WriteFromHost(memory_, arena(i) + slot.offset, slot.size * SizeOf(DType::kF32),
                               [&](void* values) { std::fill_n(static_cast<float*>(values), slot.size, value); }));
  }
  return absl::OkStatus();
}

absl::Status DoesNotFit(absl::string_view what) {
  return WithFailureClass(
      absl::FailedPreconditionError(absl::StrCat(
          what,
          "; the checkpoint is whole, but not of what this build makes of the job's spec and data: a new job can start "
          "from its weights alone (start_from.job_id; allow_missing passes over tensors that only one side has)")),
      v1::Failure::INVALID_SPEC);
}

std::vector<TensorSource> ModelTensors(runtime::ModelMemory* memory) {
  return Sources(memory->memory(), ModelSlots(memory, memory->masters()));
}

std::vector<TensorSource> AverageTensors(runtime::ModelMemory* memory, const Moments& average) {
  if (average.count() == 0) return {};
  return Sources(memory->memory(), ModelSlots(memory, average.arena(0)));
}

std::vector<TensorSource> OptimizerTensors(runtime::ModelMemory* memory, const std::vector<PhaseMoments>& moments) {
  return Sources(memory->memory(), OptimizerSlots(memory, moments));
}

absl::Status LoadModel(const Safetensors& file, runtime::ModelMemory* memory) {
  return Annotate(Load(file, memory->memory(), ModelSlots(memory, memory->masters()), NothingIsSpare),
                  "model.safetensors");
}

absl::Status LoadAverage(const Safetensors& file, runtime::ModelMemory* memory, Moments* average) {
  // The states in the file are copies of the model's.
  return Annotate(Load(file, memory->memory(), ModelSlots(memory, average->arena(0)), NothingIsSpare),
                  "ema.safetensors");
}

absl::Status LoadOptimizer(const Safetensors& file, runtime::ModelMemory* memory,
                           const std::vector<PhaseMoments>& moments, bool of_other_mode) {
  const std::set<std::string> of_untrained = SpareMoments(memory->layout(), moments);
  const auto spare = [&](const std::string& name) { return of_other_mode || of_untrained.count(name) > 0; };
  return Annotate(Load(file, memory->memory(), OptimizerSlots(memory, moments), spare), "optimizer.safetensors");
}

absl::Status CopyModel(runtime::ModelMemory* from, runtime::ModelMemory* to) {
  AlignedBuffer staging;
  const auto copy = [&](const std::vector<ir::Persistent>& sources, const std::vector<ir::Persistent>& targets,
                        const std::function<TensorView(int32_t)>& source,
                        const std::function<TensorView(int32_t)>& target) -> absl::Status {
    for (size_t t = 0; t < targets.size(); ++t) {
      const auto same = std::find_if(sources.begin(), sources.end(), [&](const ir::Persistent& p) {
        return p.name == targets[t].name && p.type == targets[t].type;
      });
      if (same == sources.end()) return absl::InternalError(absl::StrCat("[copy model] no ", targets[t].name));
      const TensorView x = source(static_cast<int32_t>(same - sources.begin())), y = target(static_cast<int32_t>(t));
      AMPD_ASSIGN_OR_RETURN(const TensorView values, runtime::OnHost(from->memory(), x, &staging));
      AMPD_RETURN_IF_ERROR(to->memory()->Upload(values.data, values.bytes(), y.data));
    }
    return absl::OkStatus();
  };
  AMPD_RETURN_IF_ERROR(copy(
      from->layout().parameters(), to->layout().parameters(), [from](int32_t i) { return from->Master(i); },
      [to](int32_t i) { return to->Master(i); }));
  return copy(
      from->layout().states(), to->layout().states(), [from](int32_t i) { return from->State(i); },
      [to](int32_t i) { return to->State(i); });
}

}  // namespace ampd::train
