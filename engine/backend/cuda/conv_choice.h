// Internal: which of a library's plans runs a convolution, by measuring them on its own buffers.
#ifndef AMPD_ENGINE_BACKEND_CUDA_CONV_CHOICE_H_
#define AMPD_ENGINE_BACKEND_CUDA_CONV_CHOICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend/cuda/conv.h"

namespace ampd::cuda {

// Plans that are measured, of those that the library expects to be fastest.
inline constexpr size_t kConvCandidates = 10;

struct ConvPlan {
  // The library's, the same in every process.
  std::string name;
  int64_t workspace_bytes = 0;
  // Enqueues on the context's stream. UNAVAILABLE: the device failed.
  std::function<absl::Status(const ConvArgs&)> run;
};

// What the library has on the context's device within the workspace that was planned, fastest by its own expectation
// first, at most `most` of them; only the one of this name where `only` is not empty.
using ListConvPlans = std::function<absl::StatusOr<std::vector<ConvPlan>>(const std::string& only, size_t most)>;

// What Context::autotune() remembers under `key`, else the fastest of what is listed, else (where nothing may be
// measured) the first. Where something may be measured it is then judged by a result and a workspace that were NaN: one
// that leaves values that are not finite gives way to one that leaves none, and that is remembered. Where an operand is
// not finite, or every plan leaves such values, nothing is said of a plan, and nothing is remembered. What was tried
// may have spoilt the operands: ConvArgs::renew is called behind it. INTERNAL where nothing is listed.
absl::StatusOr<ConvPlan> ChooseConvPlan(Context* context, const std::string& key, const ConvDesc& desc,
                                        const ConvArgs& args, const ListConvPlans& list);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_CONV_CHOICE_H_
