// A stable sort of positions by small keys, in a fixed sequence of launches that fits a captured graph. Equal inputs
// give equal outputs: nothing depends on the order in which blocks run.
#ifndef AMPD_ENGINE_BACKEND_CUDA_SORT_KEYS_H_
#define AMPD_ENGINE_BACKEND_CUDA_SORT_KEYS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/kernels.h"

namespace ampd::cuda {

// Sorts the positions 0 to count-1 by their keys; equal keys keep their order. One launch for up to 2,048 keys, else
// three for every 8 bits of the largest one. Immutable; cheap to copy.
class KeySort {
 public:
  // Takes its share of `workspace`. 1 <= count < 2^31; keys are 0 to largest_key.
  KeySort(int64_t count, uint32_t largest_key, WorkspaceLayout* workspace);

  // Where the keys must be, position by position, when Run() comes to it; it does not keep them.
  uint32_t* keys(const runtime::KernelArgs& args) const { return WorkspaceAt<uint32_t>(args, keys_at_[0]); }
  // Enqueues the sort.
  absl::Status Run(const Context& context, absl::string_view what, const runtime::KernelArgs& args) const;
  // The results.
  const uint32_t* sorted_keys(const runtime::KernelArgs& args) const {
    return WorkspaceAt<uint32_t>(args, keys_at_[passes_ % 2]);
  }
  const int32_t* positions(const runtime::KernelArgs& args) const {
    return WorkspaceAt<int32_t>(args, positions_at_[passes_ % 2]);
  }

 private:
  absl::Status RunPass(const Context& context, absl::string_view what, const runtime::KernelArgs& args, int pass) const;

  int count_;
  int passes_;
  int blocks_;
  // Each pass reads one of two buffers and writes the other.
  int64_t keys_at_[2], positions_at_[2];
  int64_t counts_at_;
};

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_SORT_KEYS_H_
