#include "tests/unit/engine/backend/kernel_runner.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/core/status.h"

namespace ampd::testing {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

constexpr int64_t kGuardBytes = 65536;
constexpr unsigned char kPoison = 0xff;  // a NaN in every float dtype

// Memory full of NaN, with a guard behind `bytes`.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(int64_t bytes) : bytes_(bytes), buffer_(bytes + kGuardBytes) {
    std::memset(buffer_.data(), kPoison, bytes + kGuardBytes);
  }
  char* data() const { return buffer_.data(); }
  bool intact() const {
    return std::all_of(buffer_.data() + bytes_, buffer_.data() + bytes_ + kGuardBytes,
                       [](char c) { return static_cast<unsigned char>(c) == kPoison; });
  }

 private:
  int64_t bytes_;
  AlignedBuffer buffer_;
};

std::vector<int> WrittenInputs(ir::OpKind op) {
  if (op == ir::OpKind::kBatchNormUpdate) return {2, 3, 4};
  if (op == ir::OpKind::kAmaxUpdate) return {1, 2, 3};
  if (op == ir::OpKind::kAccumulateGrad) return {1};
  return {};
}

Tensor Copy(const char* data, const ir::TensorType& type) {
  Tensor tensor(type.dtype, type.shape);
  std::memcpy(tensor.view().data, data, tensor.view().bytes());
  return tensor;
}

absl::Status PlaceInputs(const NodeDesc& desc, const runtime::Kernel& kernel, const std::vector<RefTensor>& inputs,
                         const std::vector<const RefTensor*>& masters, std::vector<GuardedBuffer>* buffers) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto layout = desc.IsParameter(i) ? kernel.published_layout(static_cast<int>(i)) : absl::nullopt;
    const TensorView dense{nullptr, desc.inputs[i].dtype, desc.inputs[i].shape};
    buffers->emplace_back(layout ? layout->bytes : dense.bytes());
    if (!layout) {
      CopyTo(inputs[i], {buffers->back().data(), dense.dtype, dense.shape});
      continue;
    }
    const bool given = i < masters.size() && masters[i] != nullptr;
    const Tensor master = ToTensor(given ? *masters[i] : inputs[i], DType::kF32);
    const AlignedBuffer workspace(layout->workspace_bytes);
    AMPD_RETURN_IF_ERROR(layout->write(master.as<float>().data(), buffers->back().data(), workspace.data()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Tensor>> RunKernel(const runtime::KernelTable& table, const NodeDesc& desc,
                                              const std::vector<RefTensor>& inputs, const runtime::StepState& step,
                                              const std::vector<const RefTensor*>& masters,
                                              const std::function<absl::Status()>& wait) {
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Kernel> kernel, table.Prepare(desc));
  std::vector<GuardedBuffer> in, out;
  AMPD_RETURN_IF_ERROR(PlaceInputs(desc, *kernel, inputs, masters, &in));
  std::vector<TensorView> in_views, out_views;
  for (size_t i = 0; i < in.size(); ++i) {
    in_views.push_back({in[i].data(), desc.inputs[i].dtype, desc.inputs[i].shape});
  }
  for (const ir::TensorType& type : desc.outputs) {
    out.emplace_back(NumElements(type.shape) * SizeOf(type.dtype));
    out_views.push_back({out.back().data(), type.dtype, type.shape});
  }
  const GuardedBuffer workspace(kernel->workspace_bytes());
  AMPD_RETURN_IF_ERROR(kernel->Launch({in_views, out_views, workspace.data(), &step}));
  if (wait) AMPD_RETURN_IF_ERROR(wait());
  bool intact = workspace.intact();
  for (const GuardedBuffer& buffer : in) intact &= buffer.intact();
  for (const GuardedBuffer& buffer : out) intact &= buffer.intact();
  if (!intact) return absl::InternalError(absl::StrCat(desc.name, ": wrote behind a buffer"));
  std::vector<Tensor> results;
  for (size_t i = 0; i < out.size(); ++i) results.push_back(Copy(out[i].data(), desc.outputs[i]));
  for (int i : WrittenInputs(desc.op)) results.push_back(Copy(in[i].data(), desc.inputs[i]));
  return results;
}

bool SameBits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         std::memcmp(a.view().data, b.view().data, a.view().bytes()) == 0;
}

}  // namespace ampd::testing
