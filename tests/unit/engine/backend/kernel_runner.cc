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

// Memory full of NaN, with a guard behind `bytes`; the host's image of it, and the backend's own.
class GuardedBuffer {
 public:
  GuardedBuffer(runtime::Memory* memory, int64_t bytes) : memory_(memory), bytes_(bytes), image_(bytes + kGuardBytes) {
    std::memset(image_.data(), kPoison, bytes + kGuardBytes);
    if (memory->on_host()) return;
    device_ = std::move(runtime::Buffer::Allocate(memory, bytes + kGuardBytes, "a test's buffer")).value();
  }
  // Where the host writes and reads.
  char* image() const { return image_.data(); }
  // Where the kernel does.
  char* data() const { return memory_->on_host() ? image_.data() : device_.data(); }
  absl::Status ToDevice() const {
    return memory_->on_host() ? absl::OkStatus() : memory_->Upload(image_.data(), bytes_ + kGuardBytes, data());
  }
  absl::Status FromDevice() const {
    return memory_->on_host() ? absl::OkStatus() : memory_->Download(data(), bytes_ + kGuardBytes, image_.data());
  }
  bool intact() const {
    return std::all_of(image_.data() + bytes_, image_.data() + bytes_ + kGuardBytes,
                       [](char c) { return static_cast<unsigned char>(c) == kPoison; });
  }

 private:
  runtime::Memory* memory_;
  int64_t bytes_;
  AlignedBuffer image_;
  runtime::Buffer device_;
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

absl::Status Publish(runtime::Memory* memory, const runtime::PublishedLayout& layout, const RefTensor& from,
                     const GuardedBuffer& copy) {
  const Tensor master = ToTensor(from, DType::kF32);
  AMPD_ASSIGN_OR_RETURN(const runtime::Buffer source,
                        runtime::Buffer::Allocate(memory, master.view().bytes(), "master"));
  AMPD_ASSIGN_OR_RETURN(const runtime::Buffer workspace,
                        runtime::Buffer::Allocate(memory, layout.workspace_bytes, "workspace"));
  AMPD_RETURN_IF_ERROR(memory->Upload(master.view().data, master.view().bytes(), source.data()));
  AMPD_RETURN_IF_ERROR(copy.ToDevice());
  AMPD_RETURN_IF_ERROR(layout.write(reinterpret_cast<const float*>(source.data()), copy.data(), workspace.data()));
  return memory->Wait();
}

absl::Status PlaceInputs(runtime::Memory* memory, const NodeDesc& desc, const runtime::Kernel& kernel,
                         const std::vector<RefTensor>& inputs, const std::vector<const RefTensor*>& masters,
                         std::vector<GuardedBuffer>* buffers) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto layout = desc.IsParameter(i) ? kernel.published_layout(static_cast<int>(i)) : absl::nullopt;
    const TensorView dense{nullptr, desc.inputs[i].dtype, desc.inputs[i].shape};
    buffers->emplace_back(memory, layout ? layout->bytes : dense.bytes());
    if (!layout) {
      CopyTo(inputs[i], {buffers->back().image(), dense.dtype, dense.shape});
      AMPD_RETURN_IF_ERROR(buffers->back().ToDevice());
      continue;
    }
    const bool given = i < masters.size() && masters[i] != nullptr;
    AMPD_RETURN_IF_ERROR(Publish(memory, *layout, given ? *masters[i] : inputs[i], buffers->back()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Tensor>> RunKernel(const runtime::KernelTable& table, const NodeDesc& desc,
                                              const std::vector<RefTensor>& inputs, const runtime::StepState& step,
                                              const std::vector<const RefTensor*>& masters, runtime::Memory* memory) {
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Kernel> kernel, table.Prepare(desc));
  std::vector<GuardedBuffer> in, out;
  AMPD_RETURN_IF_ERROR(PlaceInputs(memory, desc, *kernel, inputs, masters, &in));
  std::vector<TensorView> in_views, out_views;
  for (size_t i = 0; i < in.size(); ++i) {
    in_views.push_back({in[i].data(), desc.inputs[i].dtype, desc.inputs[i].shape});
  }
  for (const ir::TensorType& type : desc.outputs) {
    out.emplace_back(memory, NumElements(type.shape) * SizeOf(type.dtype));
    AMPD_RETURN_IF_ERROR(out.back().ToDevice());
    out_views.push_back({out.back().data(), type.dtype, type.shape});
  }
  const GuardedBuffer workspace(memory, kernel->workspace_bytes());
  AMPD_RETURN_IF_ERROR(workspace.ToDevice());
  AMPD_ASSIGN_OR_RETURN(const runtime::Buffer state, runtime::Buffer::Allocate(memory, sizeof(step), "step state"));
  AMPD_RETURN_IF_ERROR(memory->Upload(&step, sizeof(step), state.data()));
  AMPD_RETURN_IF_ERROR(kernel->Launch(
      {in_views, out_views, workspace.data(), reinterpret_cast<const runtime::StepState*>(state.data())}));
  AMPD_RETURN_IF_ERROR(memory->Wait());
  AMPD_RETURN_IF_ERROR(workspace.FromDevice());
  bool intact = workspace.intact();
  for (std::vector<GuardedBuffer>* buffers : {&in, &out}) {
    for (const GuardedBuffer& buffer : *buffers) {
      AMPD_RETURN_IF_ERROR(buffer.FromDevice());
      intact &= buffer.intact();
    }
  }
  if (!intact) return absl::InternalError(absl::StrCat(desc.name, ": wrote behind a buffer"));
  std::vector<Tensor> results;
  for (size_t i = 0; i < out.size(); ++i) results.push_back(Copy(out[i].image(), desc.outputs[i]));
  for (int i : WrittenInputs(desc.op)) results.push_back(Copy(in[i].image(), desc.inputs[i]));
  return results;
}

bool SameBits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         std::memcmp(a.view().data, b.view().data, a.view().bytes()) == 0;
}

}  // namespace ampd::testing
