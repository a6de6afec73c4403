// What outlives a step: masters, gradients, published copies, and untrained state. Shared by every plan of one model.
#ifndef AMPD_ENGINE_RUNTIME_MODEL_MEMORY_H_
#define AMPD_ENGINE_RUNTIME_MODEL_MEMORY_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/core/tensor.h"
#include "engine/ir/graph.h"
#include "engine/runtime/backend.h"
#include "engine/runtime/kernel_table.h"
#include "engine/runtime/memory.h"

namespace ampd::runtime {

// Where every persistent tensor of a model lies. Made from the model's graph; plans add the published copies that
// their kernels read. Not thread-safe.
class ModelLayout {
 public:
  // A copy of a parameter that kernels read.
  struct Copy {
    int32_t parameter = -1;
    PublishedLayout layout;
    int64_t offset = 0;  // bytes within the published space
  };

  explicit ModelLayout(const ir::Graph& graph);

  // INVALID_ARGUMENT, naming the difference, unless `graph` has the same parameters and states, in order.
  absl::Status Check(const ir::Graph& graph) const;
  // Index into copies(), added when there is none with this key.
  int32_t AddCopy(int32_t parameter, PublishedLayout layout);

  const std::vector<ir::Persistent>& parameters() const { return parameters_; }
  const std::vector<ir::Persistent>& states() const { return states_; }
  // By parameter, in elements; every slot starts at a multiple of kTensorAlignment bytes, gaps are zero in every arena.
  const std::vector<ArenaSlot>& slots() const { return slots_; }
  // By state, in bytes.
  const std::vector<int64_t>& state_offsets() const { return state_offsets_; }
  const std::vector<Copy>& copies() const { return copies_; }
  int64_t arena_elements() const { return arena_elements_; }  // of masters, gradients and each moment
  int64_t state_bytes() const { return state_bytes_; }
  int64_t published_bytes() const { return published_bytes_; }
  // Scratch memory of the publish stage, which writes one copy after the other.
  int64_t publish_workspace_bytes() const { return publish_workspace_bytes_; }

 private:
  std::vector<ir::Persistent> parameters_;
  std::vector<ir::Persistent> states_;
  std::vector<ArenaSlot> slots_;
  std::vector<int64_t> state_offsets_;
  std::vector<Copy> copies_;
  std::map<std::pair<int32_t, std::string>, int32_t> copy_index_;
  int64_t arena_elements_ = 0;
  int64_t state_bytes_ = 0;
  int64_t published_bytes_ = 0;
  int64_t publish_workspace_bytes_ = 0;
};

// The tensors themselves, in a backend's memory, which every pointer and view points into. Allocated once every plan of
// the model is made. Movable, but not once an executor was made with it. Thread-compatible. Errors are the memory's.
class ModelMemory {
 public:
  // Zero-filled; call Initialize() or load a checkpoint, then PublishAll(). `layout` outlives it and no longer grows,
  // `memory` outlives it. RESOURCE_EXHAUSTED as Memory::Allocate.
  static absl::StatusOr<ModelMemory> Create(const ModelLayout* layout, Memory* memory);

  // Draws masters and states from `seed`, on the host; equal seeds and names give equal numbers on every machine.
  absl::Status Initialize(uint64_t seed);
  // Rewrites every published copy from the masters.
  absl::Status PublishAll();
  // Rewrites one of layout().copies().
  absl::Status Publish(const ModelLayout::Copy& copy);

  // Starts an update: gradients are zero, the pending state is the committed one. With `overwritten` gradients are left
  // as they are, for a plan that overwrites those it has.
  absl::Status BeginUpdate(bool overwritten = false);
  // Makes the pending state the committed one.
  absl::Status CommitState();

  float* masters() { return reinterpret_cast<float*>(masters_.data()); }
  float* gradients() { return reinterpret_cast<float*>(gradients_.data()); }
  char* published() { return published_.data(); }
  char* state() { return state_.data(); }
  char* pending_state() { return pending_state_.data(); }
  // Views of one parameter's master and gradient, and of one committed state.
  TensorView Master(int32_t parameter);
  TensorView Gradient(int32_t parameter);
  TensorView State(int32_t state);
  const ModelLayout& layout() const { return *layout_; }
  Memory* memory() const { return memory_; }

 private:
  ModelMemory(const ModelLayout* layout, Memory* memory) : layout_(layout), memory_(memory) {}

  const ModelLayout* layout_;
  Memory* memory_;
  Buffer masters_;
  Buffer gradients_;
  Buffer published_;
  Buffer publish_workspace_;
  Buffer state_;
  Buffer pending_state_;
};

}  // namespace ampd::runtime

#endif  // AMPD_ENGINE_RUNTIME_MODEL_MEMORY_H_
