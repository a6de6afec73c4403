#include "engine/backend/cuda/conv2d.h"

#include <array>
#include <utility>
#include <vector>

#include "engine/backend/cuda/conv_direct.h"
#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/device_failure.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/fused_attention.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/launch.h"
#include "engine/core/status.h"
#include "engine/ops/compute.h"

namespace ampd::cuda {
namespace {

using ir::OpKind;
using runtime::KernelArgs;
using runtime::NodeDesc;

constexpr int kThreads = 256;
// Between what is widened and the workspace of a library that tries several algorithms on it.
constexpr int64_t kSlackBytes = 256;

// Zeros behind them, `total` values in all: what a library reads past an operand must not be what is left there, which
// may be NaN.
template <typename From>
__global__ void WidenCodes(const From* __restrict__ codes, int64_t size, float* __restrict__ wide, int64_t total) {
  constexpr int kN = 4;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t i = first; i < size / kN; i += stride) {
    const auto in = reinterpret_cast<const Pack<From, kN>*>(codes)[i];
    Pack<float, kN> out;
    for (int j = 0; j < kN; ++j) out.values[j] = Load(in.values[j]);
    reinterpret_cast<Pack<float, kN>*>(wide)[i] = out;
  }
  const int64_t rest = size / kN * kN + first;
  if (rest < size) wide[rest] = Load(codes[rest]);
  for (int64_t i = size + first; i < total; i += stride) wide[i] = 0;
}

class ConvKernel : public runtime::Kernel {
 public:
  ConvKernel(const NodeDesc& desc, std::unique_ptr<Conv> conv, Context* context)
      : name_(desc.name), conv_(std::move(conv)), context_(context) {
    for (size_t i = 0; i < wide_.size(); ++i) {
      if (!IsF8(desc.inputs[i].dtype)) continue;
      wide_[i] = layout_.Add(NumElements(desc.inputs[i].shape) * SizeOf(DType::kF32));
      ends_[i] = layout_.bytes();
    }
    if (conv_->workspace_bytes() == 0) return;
    if (layout_.bytes() > 0) {
      layout_.Add(kSlackBytes);
      ends_[wide_[1] >= 0 ? 1 : 0] = layout_.bytes();
    }
    workspace_ = layout_.Add(conv_->workspace_bytes());
  }

  int64_t workspace_bytes() const override { return layout_.bytes(); }

  absl::Status Launch(const KernelArgs& args) override {
    ConvArgs conv{.a = Operand(args, 0), .b = Operand(args, 1), .result = args.outputs[0].data};
    if (workspace_ >= 0) conv.workspace = WorkspaceAt<char>(args, workspace_);
    if (wide_[0] >= 0 || wide_[1] >= 0) conv.renew = [this, &args] { return WidenOperands(args); };
    AMPD_RETURN_IF_ERROR(WidenOperands(args));
    return conv_->Run(conv);
  }

 private:
  const void* Operand(const KernelArgs& args, size_t i) const {
    return wide_[i] < 0 ? args.inputs[i].data : WorkspaceAt<void>(args, wide_[i]);
  }

  absl::Status WidenOperands(const KernelArgs& args) const {
    for (size_t i = 0; i < wide_.size(); ++i) {
      const TensorView& x = args.inputs[i];
      if (wide_[i] < 0) continue;
      AMPD_RETURN_IF_ERROR(x.dtype == DType::kF8E4M3 ? Widen<Float8E4M3>(x, args, i) : Widen<Float8E5M2>(x, args, i));
    }
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status Widen(const TensorView& codes, const KernelArgs& args, size_t i) const {
    const unsigned blocks = BlocksFor(CeilDiv(codes.size(), 4), kThreads, context_->properties().sm_count);
    return cuda::Launch(name_, WidenCodes<T>, blocks, kThreads, 0, context_->stream(), codes.as<T>(), codes.size(),
                        WorkspaceAt<float>(args, wide_[i]), (ends_[i] - wide_[i]) / SizeOf(DType::kF32));
  }

  const std::string name_;
  const std::unique_ptr<Conv> conv_;
  Context* const context_;
  WorkspaceLayout layout_;
  // In the workspace; -1: there is none.
  int64_t workspace_ = -1;
  std::array<int64_t, 2> wide_ = {-1, -1};
  // Where what is written of each ends, zeros behind it among it.
  std::array<int64_t, 2> ends_ = {};
};

std::array<int64_t, 4> Extents(const Shape& s) { return {s[0], s[1], s[2], s[3]}; }

// Padding behind that no filter reaches may be any: as much as in front is what libraries are best at.
int64_t PaddingAfter(int64_t image, int64_t filter, int64_t output, int64_t stride, int64_t dilation, int64_t before,
                     int64_t after) {
  const int64_t span = (filter - 1) * dilation + 1;
  const int64_t padded = image + 2 * before;
  return padded >= span && (padded - span) / stride + 1 == output ? before : after;
}

}  // namespace

ConvDesc ConvOf(const NodeDesc& desc, const DeviceProperties& properties) {
  const Shape &a = desc.inputs[0].shape, &b = desc.inputs[1].shape, &y = desc.outputs[0].shape;
  ConvDesc conv;
  switch (desc.op) {
    case OpKind::kConv2d:
      conv.kind = ConvKind::kForward;
      conv.image = Extents(a), conv.filter = Extents(b), conv.output = Extents(y);
      break;
    case OpKind::kConv2dGradFilter:
      conv.kind = ConvKind::kGradFilter;
      conv.output = Extents(a), conv.image = Extents(b), conv.filter = Extents(y);
      break;
    default:
      conv.kind = ConvKind::kGradInput;
      conv.output = Extents(a), conv.filter = Extents(b), conv.image = Extents(y);
  }
  const std::vector<int64_t> strides = desc.attributes.Ints("strides"), pads = desc.attributes.Ints("pads");
  const std::vector<int64_t> dilations = desc.attributes.Ints("dilations");
  conv.groups = desc.attributes.Int("groups", 1);
  for (size_t i = 0; i < 2; ++i) {
    conv.strides[i] = strides[i];
    if (!dilations.empty()) conv.dilations[i] = dilations[i];
    conv.before[i] = pads[i];
    conv.after[i] = PaddingAfter(conv.image[i + 1], conv.filter[i + 1], conv.output[i + 1], conv.strides[i],
                                 conv.dilations[i], pads[i], pads[i + 2]);
  }
  const DType dtype = desc.inputs[0].dtype;
  conv.operands = IsF8(dtype) ? DType::kF32 : dtype;
  conv.result = desc.outputs[0].dtype;
  const bool may_round = IsF8(dtype) || desc.attributes.String(ops::kComputeAttribute) == ops::kComputeTf32;
  conv.tf32 = conv.operands == DType::kF32 && may_round && properties.has_bf16();
  return conv;
}

absl::StatusOr<std::unique_ptr<Conv>> MakeConvOrOwn(std::string name, const ConvDesc& desc, Context* context,
                                                    const MakeConv& make) {
  absl::StatusOr<std::unique_ptr<Conv>> conv = make(name, desc, context);
  if (conv.ok() || !OwnKernelsServe(conv.status())) return conv;
  if (!absl::IsUnimplemented(conv.status())) NoteOwnConv(context, name, conv.status().message());
  return MakeDirectConv(std::move(name), desc, context);
}

absl::StatusOr<std::unique_ptr<Conv>> MakeBestConv(std::string name, const ConvDesc& desc, Context* context) {
  return MakeConvOrOwn(std::move(name), desc, context, Conv::Create);
}

void RegisterConvolutions(runtime::KernelTable* table, Context* context, const MakeConv& make) {
  constexpr DType kForward = DType::kF8E4M3, kGradient = DType::kF8E5M2;
  const auto prepare = [context, make](const NodeDesc& desc) -> absl::StatusOr<std::unique_ptr<runtime::Kernel>> {
    AMPD_ASSIGN_OR_RETURN(std::unique_ptr<Conv> conv, make(desc.name, ConvOf(desc, context->properties()), context));
    return std::unique_ptr<runtime::Kernel>(std::make_unique<ConvKernel>(desc, std::move(conv), context));
  };
  for (OpKind op : {OpKind::kConv2d, OpKind::kConv2dGradInput, OpKind::kConv2dGradFilter, OpKind::kConvTranspose2d}) {
    for (DType t : kDataTypes) table->Add(op, {t, t}, {t}, prepare);
    for (auto [a, b] : {std::pair{kForward, kForward}, {kGradient, kForward}, {kForward, kGradient}}) {
      table->Add(op, {a, b}, {DType::kF32}, prepare);
    }
  }
}

void RegisterConv2d(runtime::KernelTable* table, Context* context) {
  RegisterConvolutions(table, context, MakeBestConv);
}

}  // namespace ampd::cuda
