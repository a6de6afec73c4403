#include "engine/runtime/self_attention.h"

#include <array>
#include <utility>

#include "engine/core/status.h"
#include "engine/ops/attention_dims.h"

namespace ampd::runtime {
namespace {

using ir::OpKind;
using ops::AttentionDims;

// Inputs of self_attention_grad, and of self_attention.
constexpr size_t kDy = 0, kGradQkv = 1, kY = 2, kLogSum = 3, kGradMask = 4;
constexpr size_t kQkv = 0, kMask = 1;

// Where q, k and v begin, in elements, and their types.
struct Parts {
  std::array<int64_t, 3> at;
  std::array<ir::TensorType, 3> types;

  Parts(const AttentionDims& d, DType dtype) : at{0, d.keys_at(), d.values_at()} {
    const ir::TensorType keys{dtype, {d.batch, d.kv_length, d.kv_heads * d.head_size}};
    types = {ir::TensorType{dtype, {d.batch, d.q_length, d.heads * d.head_size}}, keys, keys};
  }

  TensorView Of(const TensorView& qkv, size_t part) const {
    return {qkv.as<char>() + at[part] * SizeOf(qkv.dtype), types[part].dtype, types[part].shape};
  }
};

class SelfAttention : public Kernel {
 public:
  SelfAttention(std::unique_ptr<Kernel> attention, const Parts& parts, bool gradient)
      : attention_(std::move(attention)), parts_(parts), gradient_(gradient) {}

  int64_t workspace_bytes() const override { return attention_->workspace_bytes(); }

  absl::Status Launch(const KernelArgs& args) override {
    std::array<TensorView, 7> in;
    std::array<TensorView, 3> out;
    size_t inputs = 0;
    if (gradient_) in[inputs++] = args.inputs[kDy];
    const TensorView& qkv = args.inputs[gradient_ ? kGradQkv : kQkv];
    for (size_t i = 0; i < 3; ++i) in[inputs++] = parts_.Of(qkv, i);
    if (gradient_) in[inputs++] = args.inputs[kY];
    if (gradient_) in[inputs++] = args.inputs[kLogSum];
    const size_t mask = gradient_ ? kGradMask : kMask;
    if (args.inputs.size() > mask) in[inputs++] = args.inputs[mask];
    if (!gradient_) return Run(args, {in.data(), inputs}, args.outputs);
    for (size_t i = 0; i < 3; ++i) out[i] = parts_.Of(args.outputs[0], i);
    return Run(args, {in.data(), inputs}, out);
  }

 private:
  absl::Status Run(const KernelArgs& args, absl::Span<const TensorView> in, absl::Span<const TensorView> out) {
    return attention_->Launch({.inputs = in, .outputs = out, .workspace = args.workspace, .step = args.step});
  }

  const std::unique_ptr<Kernel> attention_;
  const Parts parts_;
  const bool gradient_;
};

// The node of attention, or of its gradient, that a node of self_attention stands for.
NodeDesc AttentionDesc(const NodeDesc& desc, const AttentionDims& d, const Parts& parts, bool gradient) {
  NodeDesc inner = desc;
  inner.op = gradient ? OpKind::kAttentionGrad : OpKind::kAttention;
  inner.attributes.Set(ops::kRowAttribute, d.row);
  inner.parameter_inputs.clear();
  const auto at = inner.inputs.erase(inner.inputs.begin() + static_cast<int64_t>(gradient ? kGradQkv : kQkv));
  inner.inputs.insert(at, parts.types.begin(), parts.types.end());
  if (gradient) inner.outputs.assign(parts.types.begin(), parts.types.end());
  return inner;
}

PrepareKernel SelfAttentionBy(PrepareKernel attention, bool gradient) {
  return [attention = std::move(attention), gradient](const NodeDesc& desc) -> absl::StatusOr<std::unique_ptr<Kernel>> {
    const ir::TensorType& qkv = desc.inputs[gradient ? kGradQkv : kQkv];
    const AttentionDims d = ops::SelfAttentionDimsOf(desc.attributes, qkv.shape);
    const Parts parts(d, qkv.dtype);
    AMPD_ASSIGN_OR_RETURN(std::unique_ptr<Kernel> inner, attention(AttentionDesc(desc, d, parts, gradient)));
    return std::unique_ptr<Kernel>(std::make_unique<SelfAttention>(std::move(inner), parts, gradient));
  };
}

}  // namespace

void AddSelfAttention(KernelTable* table, DType dtype, const PrepareKernel& attention) {
  const PrepareKernel prepare = SelfAttentionBy(attention, false);
  table->Add(OpKind::kSelfAttention, {dtype}, {dtype, DType::kF32}, prepare);
  for (DType mask : {DType::kBool, DType::kF32}) {
    table->Add(OpKind::kSelfAttention, {dtype, mask}, {dtype, DType::kF32}, prepare);
  }
}

void AddSelfAttentionGrad(KernelTable* table, DType dtype, const PrepareKernel& gradient) {
  const PrepareKernel prepare = SelfAttentionBy(gradient, true);
  table->Add(OpKind::kSelfAttentionGrad, {dtype, dtype, dtype, DType::kF32}, {dtype}, prepare);
  for (DType mask : {DType::kBool, DType::kF32}) {
    table->Add(OpKind::kSelfAttentionGrad, {dtype, dtype, dtype, DType::kF32, mask}, {dtype}, prepare);
  }
}

}  // namespace ampd::runtime
