// Attention by a library's kernels on matrix units, as the backend's kernels ask for it: cudnn/attention.cc is cuDNN's,
// no_cudnn/attention.cc stands in where there is none. What it does not take runs on the backend's own kernels.
#ifndef AMPD_ENGINE_BACKEND_CUDA_FUSED_ATTENTION_H_
#define AMPD_ENGINE_BACKEND_CUDA_FUSED_ATTENTION_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/cuda/context.h"
#include "engine/core/dtype.h"
#include "engine/ops/attention_dims.h"

namespace ampd::cuda {

struct FusedAttentionDesc {
  bool gradient = false;
  DType dtype = DType::kF16;
  ops::AttentionDims dims;  // without a mask
};

// Device memory, laid out as attention's and attention_grad's operands (docs/ops.md). The weights are rounded to the
// operands' dtype before they are multiplied with the values, and score gradients, too.
struct FusedAttentionArgs {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* y = nullptr;         // read by the gradient
  float* log_sum = nullptr;  // read by the gradient
  const void* dy = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  void* workspace = nullptr;  // of workspace_bytes(), aligned to kTensorAlignment
};

// Made for one description; used by one thread, as the context is. Equal inputs give equal bits.
class FusedAttention {
 public:
  // Equal uses get the same one. UNIMPLEMENTED, saying why, for what the library does not take on the context's device,
  // or what is so small that the backend's own kernel serves it as well. Asks the driver only of an open context.
  static absl::StatusOr<std::shared_ptr<FusedAttention>> Create(const FusedAttentionDesc& desc, Context* context);
  virtual ~FusedAttention() = default;

  virtual int64_t workspace_bytes() const = 0;
  // The library's name of what runs it.
  virtual std::string algorithm() const = 0;
  // Enqueues on the context's stream, which is open.
  virtual absl::Status Run(const FusedAttentionArgs& args) = 0;
};

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_FUSED_ATTENTION_H_
