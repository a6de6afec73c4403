// Attention by a library's kernels on matrix units, as the backend's kernels ask for it: cudnn/attention.cc is cuDNN's,
// no_cudnn/attention.cc stands in where there is none. What it does not take runs on the backend's own kernels.
#ifndef AMPD_ENGINE_BACKEND_CUDA_FUSED_ATTENTION_H_
#define AMPD_ENGINE_BACKEND_CUDA_FUSED_ATTENTION_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
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

// What a context keeps of attention, and for the same log of convolutions.
struct AttentionUses {
  // The library's, while they are in use, by description.
  std::map<std::string, std::weak_ptr<FusedAttention>> made;
  // Nodes that kernels were prepared for, by what runs them.
  std::map<std::string, std::set<std::string>> nodes;
  // Convolutions that the library failed at, by its error.
  std::map<std::string, std::set<std::string>> convs;
};
AttentionUses& AttentionUsesOf(Context* context);

// Remembers what runs attention or a gradient of it: for AttentionNotes().
void NoteFusedAttention(Context* context, const std::string& node, const FusedAttention& by);
void NoteOwnAttention(Context* context, const std::string& node, absl::string_view why);
// Remembers that the backend's own kernel runs a convolution at which the library failed.
void NoteOwnConv(Context* context, const std::string& node, absl::string_view why);
using MakeAttention =
    std::function<absl::StatusOr<std::shared_ptr<FusedAttention>>(const FusedAttentionDesc&, Context*)>;
// The library's for a node, or null where the backend's own kernels are to run it: with a mask, and what `make` refuses
// or fails at (OwnKernelsServe). Notes which, and why.
absl::StatusOr<std::shared_ptr<FusedAttention>> ChooseAttention(Context* context, const std::string& node,
                                                                const FusedAttentionDesc& desc, bool has_mask,
                                                                const MakeAttention& make = FusedAttention::Create);
// For a log: a sentence for each way in which the context's attention runs, with the library's algorithm, or why it
// runs on the backend's own kernels; and for each error of the library for which a convolution does.
std::vector<std::string> AttentionNotes(Context* context);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_FUSED_ATTENTION_H_
