#include "engine/train/sizing_backend.h"

#include <algorithm>

#include "engine/ops/elementwise_functions.h"

namespace ampd::train {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;
// kMaxConvWorkspace and LargestGemmWorkspace of the CUDA backend.
constexpr int64_t kConvWorkspace = 256 * kMebibyte;
constexpr int64_t kGemmWorkspaceOfHopper = 32 * kMebibyte;
constexpr int64_t kGemmWorkspace = 8 * kMebibyte;

absl::Status NotHere() { return absl::UnimplementedError("a plan for a device that is not there cannot run"); }

class SizingKernel : public runtime::Kernel {
 public:
  SizingKernel(int64_t workspace_bytes, int overwrites) : workspace_bytes_(workspace_bytes), overwrites_(overwrites) {}
  int64_t workspace_bytes() const override { return workspace_bytes_; }
  int overwrites(int output) const override { return output == 0 ? overwrites_ : -1; }
  absl::Status Launch(const runtime::KernelArgs&) override { return NotHere(); }

 private:
  const int64_t workspace_bytes_;
  const int overwrites_;
};

class NoMemory : public runtime::Memory {
 public:
  bool on_host() const override { return false; }
  int64_t total_bytes() const override { return 0; }
  int64_t free_bytes() const override { return 0; }
  absl::StatusOr<void*> Allocate(int64_t, absl::string_view) override { return NotHere(); }
  void Free(void*) override {}
  absl::Status Upload(const void*, int64_t, void*) override { return NotHere(); }
  absl::Status Download(const void*, int64_t, void*) override { return NotHere(); }
  absl::Status Copy(const void*, int64_t, void*) override { return NotHere(); }
  absl::Status Zero(void*, int64_t) override { return NotHere(); }
  absl::Status Wait() override { return NotHere(); }
};

int64_t ResultBytes(const runtime::NodeDesc& desc) {
  int64_t bytes = 0;
  for (const ir::TensorType& type : desc.outputs) bytes += NumElements(type.shape) * SizeOf(type.dtype);
  return bytes;
}

int64_t WorkspaceOf(const runtime::NodeDesc& desc, int64_t gemm_bytes) {
  switch (desc.op) {
    case ir::OpKind::kMatmul:
      return std::min(gemm_bytes, ResultBytes(desc) * 4);
    case ir::OpKind::kConv2d:
    case ir::OpKind::kConv2dGradInput:
    case ir::OpKind::kConv2dGradFilter:
    case ir::OpKind::kConvTranspose2d:
      return kConvWorkspace;
    case ir::OpKind::kAttention:
    case ir::OpKind::kAttentionGrad:
    case ir::OpKind::kSelfAttention:
    case ir::OpKind::kSelfAttentionGrad:
    case ir::OpKind::kLstm:
    case ir::OpKind::kLstmGrad:
    case ir::OpKind::kGru:
    case ir::OpKind::kGruGrad:
    case ir::OpKind::kCtcLoss:
      return ResultBytes(desc);
    // A double for each prior, beside the result's float.
    case ir::OpKind::kMultiboxLoss:
      return 2 * ResultBytes(desc);
    // What the product leaves for the rest, where one call does not compute both.
    case ir::OpKind::kRegion:
      return ResultBytes(desc) / static_cast<int64_t>(desc.outputs.size()) +
             WorkspaceOf({.op = desc.steps.front().op, .outputs = {desc.outputs.front()}}, gemm_bytes);
    default:
      return 0;
  }
}

// The input that the first result may lie over: logits under their gradient, what is added under the sum.
int OverwrittenBy(const runtime::NodeDesc& desc) {
  switch (desc.op) {
    case ir::OpKind::kSoftmaxCrossEntropyGrad:
    case ir::OpKind::kSoftCrossEntropyGrad:
      return 1;
    case ir::OpKind::kLayerNormGrad:
      return desc.inputs.size() > 5 ? 5 : -1;
    case ir::OpKind::kRmsNormGrad:
      return desc.inputs.size() > 4 ? 4 : -1;
    default:
      return -1;
  }
}

class SizingBackend : public runtime::Backend {
 public:
  explicit SizingBackend(const v1::DeviceModel& model)
      : turns_codes_(10 * model.compute_capability_major() + model.compute_capability_minor() >= 89) {
    const int64_t gemm = model.compute_capability_major() >= 9 ? kGemmWorkspaceOfHopper : kGemmWorkspace;
    for (const ir::OpKind op : ir::kAllOpKinds) {
      kernels_.AddForAnyDTypes(op, [gemm](const runtime::NodeDesc& desc) {
        return absl::StatusOr<std::unique_ptr<runtime::Kernel>>(
            std::make_unique<SizingKernel>(WorkspaceOf(desc, gemm), OverwrittenBy(desc)));
      });
    }
  }

  absl::string_view name() const override { return "sizing"; }
  const runtime::KernelTable& kernels() const override { return kernels_; }
  runtime::Memory* memory() const override { return &memory_; }
  bool CanFuse(ir::OpKind op) const override {
    return op == ir::OpKind::kCast || ops::FunctionOf(op, {}) != ops::ElementwiseFunction::kNone;
  }
  passes::JoinPolicy joins() const override { return passes::LibraryJoins(); }
  bool turns_codes() const override { return turns_codes_; }
  passes::PaddingPolicy padding() const override { return passes::kTensorCorePadding; }

  absl::Status CheckGradients(const float*, absl::Span<const runtime::ArenaSlot>, float,
                              runtime::GradientCheck*) override {
    return NotHere();
  }
  absl::Status Update(const runtime::UpdateArgs&) override { return NotHere(); }
  absl::Status Publish(const float*, int64_t, DType, void*) override { return NotHere(); }
  absl::Status PadInto(const float*, const Shape&, const Shape&, float*) override { return NotHere(); }
  absl::Status FindNonFinite(const TensorView&, bool*, bool*) override { return NotHere(); }

 private:
  const bool turns_codes_;
  runtime::KernelTable kernels_;
  mutable NoMemory memory_;
};

}  // namespace

std::unique_ptr<runtime::Backend> MakeSizingBackend(const v1::DeviceModel& model) {
  return std::make_unique<SizingBackend>(model);
}

}  // namespace ampd::train
