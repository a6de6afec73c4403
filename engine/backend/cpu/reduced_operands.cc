// Kernels of fp32 operands run on operands of fewer bits: TF32's rounding of f32, and 8-bit codes. Both are exact as
// f32, as are products of two 8-bit codes, so that the kernel inside computes what a matrix unit of that format would:
// exact products, accumulated in fp32. For ops that are a product of their inputs; others (attention, recurrences) make
// operands of their own, read some inputs elsewhere too, and round for themselves.
#include <utility>
#include <vector>

#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/quantize.h"
#include "engine/core/status.h"
#include "engine/ops/compute.h"
#include "engine/ops/op_def.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;
using runtime::PublishedLayout;

void ParallelRoundToTf32(int threads, const float* from, int64_t n, float* to) {
  ParallelRange(PartsFor(threads, n, kMinElementsPerThread), n, kBlock,
                [&](int, int64_t begin, int64_t end) { RoundToTf32(from + begin, end - begin, to + begin); });
}

// Hands the inner kernel f32 copies of some inputs.
class ReducedOperandKernel : public runtime::Kernel {
 public:
  // `reduced`: which inputs.
  ReducedOperandKernel(std::unique_ptr<runtime::Kernel> inner, const NodeDesc& desc, const std::vector<bool>& reduced)
      : inner_(std::move(inner)), threads_(desc.threads) {
    layout_.Add(inner_->workspace_bytes());
    for (size_t i = 0; i < desc.inputs.size(); ++i) {
      const ir::TensorType& type = desc.inputs[i];
      inputs_.push_back({.reduced = reduced[i], .elements = NumElements(type.shape)});
      views_.push_back({nullptr, reduced[i] ? DType::kF32 : type.dtype, type.shape});
      if (!reduced[i]) continue;
      inputs_[i].published = type.dtype == DType::kF32 && desc.IsParameter(i);
      if (!inputs_[i].published) inputs_[i].at = layout_.Add(inputs_[i].elements * SizeOf(DType::kF32));
    }
  }

  int64_t workspace_bytes() const override { return layout_.bytes(); }

  // Parameters are rounded once a step, on publishing.
  absl::optional<PublishedLayout> published_layout(int input) const override {
    if (input < 0 || static_cast<size_t>(input) >= inputs_.size()) return absl::nullopt;
    absl::optional<PublishedLayout> inner = inner_->published_layout(input);
    if (!inputs_[input].published) return inner;
    const int64_t n = inputs_[input].elements;
    const int threads = threads_;
    if (!inner) {
      return PublishedLayout{.key = "f32:dense:tf32",
                             .bytes = n * SizeOf(DType::kF32),
                             .write = [n, threads](const float* master, void* copy, void*) {
                               ParallelRoundToTf32(threads, master, n, static_cast<float*>(copy));
                               return absl::OkStatus();
                             }};
    }
    const int64_t bytes = AlignUp(n * SizeOf(DType::kF32));
    inner->workspace_bytes += bytes;
    inner->key += ":tf32";
    inner->write = [n, threads, bytes, write = inner->write](const float* master, void* copy, void* workspace) {
      auto* rounded = static_cast<float*>(workspace);
      ParallelRoundToTf32(threads, master, n, rounded);
      return write(rounded, copy, static_cast<char*>(workspace) + bytes);
    };
    return inner;
  }

  absl::Status Launch(const KernelArgs& args) override {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      views_[i].data = args.inputs[i].data;
      if (inputs_[i].reduced && !inputs_[i].published) views_[i].data = Convert(args, i);
    }
    KernelArgs inner = args;
    inner.inputs = views_;
    return inner_->Launch(inner);
  }

 private:
  struct Input {
    bool reduced = false;
    bool published = false;
    int64_t elements = 0;
    int64_t at = 0;
  };

  void* Convert(const KernelArgs& args, size_t i) const {
    const TensorView& from = args.inputs[i];
    auto* to = WorkspaceAt<float>(args, inputs_[i].at);
    if (from.dtype == DType::kF32) {
      ParallelRoundToTf32(threads_, from.as<float>(), inputs_[i].elements, to);
    } else {
      ParallelToF32(threads_, from.dtype, from.data, inputs_[i].elements, to);
    }
    return to;
  }

  std::unique_ptr<runtime::Kernel> inner_;
  int threads_;
  WorkspaceLayout layout_;
  std::vector<Input> inputs_;
  std::vector<TensorView> views_;
};

absl::StatusOr<std::unique_ptr<runtime::Kernel>> Wrap(const runtime::PrepareKernel& prepare, const NodeDesc& inner_desc,
                                                      const NodeDesc& desc, const std::vector<bool>& reduced) {
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Kernel> inner, prepare(inner_desc));
  return std::unique_ptr<runtime::Kernel>(std::make_unique<ReducedOperandKernel>(std::move(inner), desc, reduced));
}

runtime::PrepareKernel WithTf32(runtime::PrepareKernel prepare) {
  return [prepare = std::move(prepare)](const NodeDesc& desc) -> absl::StatusOr<std::unique_ptr<runtime::Kernel>> {
    if (desc.attributes.String(ops::kComputeAttribute) != ops::kComputeTf32) return prepare(desc);
    const ops::OpDef& def = ops::GetOpDef(desc.op);
    std::vector<bool> reduced;
    for (size_t i = 0; i < desc.inputs.size(); ++i) {
      reduced.push_back(desc.inputs[i].dtype == DType::kF32 && ops::RoleOf(def, i) == ops::Role::kData);
    }
    return Wrap(prepare, desc, desc, reduced);
  };
}

runtime::PrepareKernel WithFloat8(runtime::PrepareKernel prepare) {
  return [prepare = std::move(prepare)](const NodeDesc& desc) {
    NodeDesc widened = desc;
    for (ir::TensorType& type : widened.inputs) type.dtype = DType::kF32;
    widened.parameter_inputs.clear();
    return Wrap(prepare, widened, desc, std::vector<bool>(desc.inputs.size(), true));
  };
}

// Products of codes in f32, then what they stand for.
class ScaledProduct : public runtime::Kernel {
 public:
  ScaledProduct(std::unique_ptr<runtime::Kernel> product, const NodeDesc& desc)
      : product_(std::move(product)), threads_(desc.threads), sums_{nullptr, DType::kF32, desc.outputs[0].shape} {
    layout_.Add(product_->workspace_bytes());
    if (desc.outputs[0].dtype != DType::kF32) sums_at_ = layout_.Add(sums_.bytes());
  }

  int64_t workspace_bytes() const override { return layout_.bytes(); }

  absl::Status Launch(const KernelArgs& args) override {
    const TensorView& y = args.outputs[0];
    sums_.data = y.dtype == DType::kF32 ? y.data : WorkspaceAt<void>(args, sums_at_);
    AMPD_RETURN_IF_ERROR(product_->Launch(
        {.inputs = args.inputs.subspan(0, 2), .outputs = {&sums_, 1}, .workspace = args.workspace, .step = args.step}));
    Dequantize(threads_, sums_, *args.inputs[2].as<float>(), *args.inputs[3].as<float>(), y);
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<runtime::Kernel> product_;
  const int threads_;
  WorkspaceLayout layout_;
  int64_t sums_at_ = 0;
  TensorView sums_;
};

runtime::PrepareKernel WithScales(runtime::PrepareKernel prepare) {
  return [prepare = std::move(prepare)](const NodeDesc& desc) -> absl::StatusOr<std::unique_ptr<runtime::Kernel>> {
    NodeDesc product = desc;
    product.inputs.resize(2);
    product.outputs[0].dtype = DType::kF32;
    product.parameter_inputs.clear();
    AMPD_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Kernel> inner, prepare(product));
    return std::unique_ptr<runtime::Kernel>(std::make_unique<ScaledProduct>(std::move(inner), desc));
  };
}

bool IsAllF32(const std::vector<DType>& dtypes) {
  for (DType dtype : dtypes) {
    if (IsFloat(dtype) && dtype != DType::kF32) return false;
  }
  return true;
}

}  // namespace

void RegisterReducedOperands(runtime::KernelTable* table) {
  constexpr DType kForward = DType::kF8E4M3, kGradient = DType::kF8E5M2;
  for (const auto& [op, signature] : table->Rows()) {
    const ops::OpDef& def = ops::GetOpDef(op);
    if (!def.bilinear || !IsAllF32(signature.first)) continue;
    const runtime::PrepareKernel prepare = *table->Find(op, signature);
    table->Add(op, signature.first, signature.second, WithTf32(prepare));
    if (signature.first.size() != 2) continue;
    for (auto [a, b] : {std::pair{kForward, kForward}, {kGradient, kForward}, {kForward, kGradient}}) {
      table->Add(op, {a, b}, signature.second, WithFloat8(prepare));
      if (op != ir::OpKind::kMatmul) continue;
      for (DType t : kDataTypes) table->Add(op, {a, b, DType::kF32, DType::kF32}, {t}, WithScales(WithFloat8(prepare)));
    }
  }
}

}  // namespace ampd::cpu
