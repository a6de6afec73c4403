// GRU (Cho et al. 2014): gates in PyTorch's order r, z, n. The reset gate acts behind the hidden product (PyTorch,
// linear_before_reset) or before it (the paper, ONNX's default).
#include <cstring>

#include "engine/backend/cpu/recurrent.h"
#include "engine/backend/cpu/vector_math.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

// r and z from the input's and the state's share of both. All rows hold 2n elements.
AMPD_CPU_CLONES void ResetAndUpdate(const float* __restrict input, const float* __restrict hidden,
                                    const float* __restrict b_ih, const float* __restrict b_hh, int64_t n2,
                                    float* __restrict gates) {
  for (int64_t j = 0; j < n2; ++j) gates[j] = SigmoidF((input[j] + b_ih[j]) + (hidden[j] + b_hh[j]));
}

// n from the input's share, the state's share q (with its bias) and the gate r that it is multiplied with, or null.
AMPD_CPU_CLONES void NewState(const float* __restrict input, const float* __restrict b_ih, const float* __restrict q,
                              const float* __restrict r, const float* __restrict z, const float* __restrict before,
                              int64_t n, float* __restrict fresh, float* __restrict h) {
  if (r == nullptr) {
    for (int64_t j = 0; j < n; ++j) fresh[j] = TanhF((input[j] + b_ih[j]) + q[j]);
  } else {
    for (int64_t j = 0; j < n; ++j) fresh[j] = TanhF((input[j] + b_ih[j]) + r[j] * q[j]);
  }
  for (int64_t j = 0; j < n; ++j) h[j] = (1.0f - z[j]) * fresh[j] + z[j] * before[j];
}

AMPD_CPU_CLONES void Sum(const float* __restrict a, const float* __restrict b, int64_t n, float* __restrict y) {
  for (int64_t j = 0; j < n; ++j) y[j] = a[j] + b[j];
}

AMPD_CPU_CLONES void Product(const float* __restrict a, const float* __restrict b, int64_t n, float* __restrict y) {
  for (int64_t j = 0; j < n; ++j) y[j] = a[j] * b[j];
}

// Products with w_hh: with all of it, or apart with the rows of r, z and of n.
struct HiddenProducts {
  bool apart;
  std::unique_ptr<SequenceProduct> all, gates, fresh;

  // Forward multiplies with the transpose, backward with w_hh.
  HiddenProducts(const Sequence& s, bool split, bool forward, WorkspaceLayout* layout) : apart(split) {
    const auto make = [&](int64_t blocks) {
      const int64_t rows = blocks * s.hidden;
      const StepGemmShape shape = forward ? StepGemmShape{.inner = s.hidden, .columns = rows, .b_transposed = true}
                                          : StepGemmShape{.inner = rows, .columns = s.hidden};
      return std::make_unique<SequenceProduct>(s, 1, shape, layout);
    };
    if (apart) {
      gates = make(2), fresh = make(1);
    } else {
      all = make(3);
    }
  }

  absl::Status Pack(const KernelArgs& args, int part, const void* w_hh, const Sequence& s) const {
    if (!apart) return all->Pack(args, part, w_hh);
    absl::Status status = gates->Pack(args, part, w_hh);
    const char* rows_of_new = static_cast<const char*>(w_hh) + 2 * s.hidden * s.hidden * s.compute_bytes();
    if (status.ok()) status = fresh->Pack(args, part, rows_of_new);
    return status;
  }
};

bool ResetFirst(const NodeDesc& desc) { return desc.attributes.Int("linear_before_reset", 1) == 0; }

class GruKernel : public runtime::Kernel {
 public:
  GruKernel(const NodeDesc& desc, dnnl::memory::data_type compute)
      : s_(desc, desc.inputs[0].shape, desc.inputs[2].shape[1], Flops(desc), compute),
        features_(desc.inputs[0].shape[2]),
        input_(s_, NumElements(desc.inputs[0].shape), &layout_),
        input_weights_(s_, NumElements(desc.inputs[1].shape), &layout_),
        hidden_(s_, s_.batch * s_.hidden, &layout_),
        hidden_weights_(s_, NumElements(desc.inputs[2].shape), &layout_),
        reset_(s_, ResetFirst(desc) ? s_.batch * s_.hidden : 0, &layout_, true),
        input_product_(s_, s_.time, {.inner = features_, .columns = 3 * s_.hidden, .b_transposed = true}, &layout_),
        products_(s_, ResetFirst(desc), true, &layout_),
        statuses_(s_.parts) {
    const int64_t row = s_.hidden * 4;
    bias_at_ = layout_.Add(6 * row);
    share_at_ = layout_.Add(s_.batch * 3 * row);
    scratch_at_ = layout_.Add(s_.parts * kScratchRows * row);
    projected_at_ = layout_.Add(s_.batch * s_.time * 3 * row);
  }

  int64_t workspace_bytes() const override { return layout_.bytes(); }

  absl::Status Launch(const KernelArgs& args) override {
    const int64_t n = s_.hidden;
    auto* bias = WorkspaceAt<float>(args, bias_at_);
    std::memset(bias, 0, static_cast<size_t>(6 * n) * sizeof(float));
    for (size_t i = 3; i < 5 && args.inputs.size() > 3; ++i) {
      std::memcpy(bias + static_cast<int64_t>(i - 3) * 3 * n, args.inputs[i].data,
                  static_cast<size_t>(3 * n) * sizeof(float));
    }
    const void* w_ih = input_weights_.Ready(args, args.inputs[1].data, 0, args.inputs[1].size());
    const void* w_hh = hidden_weights_.Ready(args, args.inputs[2].data, 0, args.inputs[2].size());
    return RunParts(s_, &statuses_, [&](int part) { return Part(args, part, w_ih, w_hh); });
  }

 private:
  // f32 copies of the gates and q (4), the state before, the state.
  static constexpr int64_t kScratchRows = 6;

  static double Flops(const NodeDesc& desc) {
    const Shape& x = desc.inputs[0].shape;
    return 2.0 * static_cast<double>(x[0] * x[1]) *
           static_cast<double>(NumElements(desc.inputs[1].shape) + NumElements(desc.inputs[2].shape));
  }

  absl::Status Project(const KernelArgs& args, int part, const void* w_ih) {
    const int64_t first = s_.begin(part) * s_.time * features_;
    const void* x = input_.Ready(args, ElementAt(args.inputs[0], first), first, s_.rows(part) * s_.time * features_);
    absl::Status status = input_product_.Pack(args, part, w_ih);
    if (!status.ok()) return status;
    float* projected = WorkspaceAt<float>(args, projected_at_) + s_.begin(part) * s_.time * 3 * s_.hidden;
    return input_product_.Run(args, part, x, projected);
  }

  absl::Status Part(const KernelArgs& args, int part, const void* w_ih, const void* w_hh) {
    const int64_t n = s_.hidden, begin = s_.begin(part), rows = s_.rows(part);
    absl::Status status = Project(args, part, w_ih);
    if (status.ok()) status = products_.Pack(args, part, w_hh, s_);
    if (args.inputs.size() > 6) {
      CopyElements(args.inputs[6], begin * n, rows * n, args.outputs[1], begin * n);
    } else {
      ClearElements(args.outputs[1], begin * n, rows * n);
    }
    for (int64_t step = 0; step < s_.time && status.ok(); ++step) status = Step(args, part, s_.at(step));
    return status;
  }

  // All samples of a part at time t. The output h_n holds the running state.
  absl::Status Step(const KernelArgs& args, int part, int64_t t) {
    const int64_t n = s_.hidden, begin = s_.begin(part), rows = s_.rows(part);
    float* share = WorkspaceAt<float>(args, share_at_) + begin * 3 * n;
    const void* h = hidden_.Ready(args, ElementAt(args.outputs[1], begin * n), begin * n, rows * n);
    if (!products_.apart) {
      absl::Status status = products_.all->Run(args, part, h, share);
      for (int64_t b = begin; b < begin + rows; ++b) Advance(args, part, b, t, share + (b - begin) * 3 * n);
      return status;
    }
    absl::Status status = products_.gates->Run(args, part, h, share);
    for (int64_t b = begin; b < begin + rows; ++b) ResetState(args, part, b, t, share + (b - begin) * 2 * n);
    // The gates' share is used up.
    if (status.ok()) status = products_.fresh->Run(args, part, reset_.At(args, begin * n), share);
    for (int64_t b = begin; b < begin + rows; ++b) FinishReset(args, part, b, t, share + (b - begin) * n);
    return status;
  }

  bool Active(const KernelArgs& args, int64_t b, int64_t t) const {
    return t < LengthOf(args.inputs.size() > 5 ? &args.inputs[5] : nullptr, b, s_.time);
  }
  void Clear(const KernelArgs& args, int64_t at) const {
    ClearElements(args.outputs[0], at, s_.hidden);
    ClearElements(args.outputs[2], 4 * at, 4 * s_.hidden);
  }
  float* Scratch(const KernelArgs& args, int part) const {
    return WorkspaceAt<float>(args, scratch_at_) + part * kScratchRows * s_.hidden;
  }
  const float* Projected(const KernelArgs& args, int64_t at) const {
    return WorkspaceAt<float>(args, projected_at_) + 3 * at;
  }

  void Advance(const KernelArgs& args, int part, int64_t b, int64_t t, const float* share) const {
    const int64_t n = s_.hidden, at = (b * s_.time + t) * n;
    if (!Active(args, b, t)) return Clear(args, at);
    const float* b_ih = WorkspaceAt<float>(args, bias_at_);
    const float* b_hh = b_ih + 3 * n;
    float* scratch = Scratch(args, part);
    float* gates = Target(args.outputs[2], 4 * at, scratch);
    const float* before = Load(args.outputs[1], b * n, n, scratch + 4 * n);
    ResetAndUpdate(Projected(args, at), share, b_ih, b_hh, 2 * n, gates);
    Sum(share + 2 * n, b_hh + 2 * n, n, gates + 3 * n);
    Finish(args, b, at, gates, gates, before, scratch + 5 * n);
  }

  // n and the new state from gates r, z and q; `r` null: q is not multiplied.
  void Finish(const KernelArgs& args, int64_t b, int64_t at, float* gates, const float* r, const float* before,
              float* scratch) const {
    const int64_t n = s_.hidden;
    const float* b_ih = WorkspaceAt<float>(args, bias_at_);
    float* h = s_.dtype == DType::kF32 ? args.outputs[0].as<float>() + at : scratch;
    NewState(Projected(args, at) + 2 * n, b_ih + 2 * n, gates + 3 * n, r, gates + n, before, n, gates + 2 * n, h);
    Store(args.outputs[0], at, n, h);
    Store(args.outputs[2], 4 * at, 4 * n, gates);
    CopyElements(args.outputs[0], at, n, args.outputs[1], b * n);
  }

  // The first half of a step with the reset before the product: r, z, and r * h for the product.
  void ResetState(const KernelArgs& args, int part, int64_t b, int64_t t, const float* share) const {
    const int64_t n = s_.hidden, at = (b * s_.time + t) * n;
    if (!Active(args, b, t)) {
      reset_.ClearRow(args, b * n, n);
      return Clear(args, at);
    }
    const float* b_ih = WorkspaceAt<float>(args, bias_at_);
    float* scratch = Scratch(args, part);
    float* gates = Target(args.outputs[2], 4 * at, scratch);
    ResetAndUpdate(Projected(args, at), share, b_ih, b_ih + 3 * n, 2 * n, gates);
    Product(gates, Load(args.outputs[1], b * n, n, scratch + 4 * n), n, gates + 3 * n);
    Store(args.outputs[2], 4 * at, 4 * n, gates);
    reset_.PutRow(args, ElementAt(args.outputs[2], 4 * at + 3 * n), b * n, n);
  }

  // The second half. The fourth gate is r * h when it is over.
  void FinishReset(const KernelArgs& args, int part, int64_t b, int64_t t, const float* share) const {
    const int64_t n = s_.hidden, at = (b * s_.time + t) * n;
    if (!Active(args, b, t)) return;
    const float* b_hh = WorkspaceAt<float>(args, bias_at_) + 3 * n;
    float* scratch = Scratch(args, part);
    float* row =
        WorkspaceAt<float>(args, share_at_) + (s_.begin(part) * 3 + 2 * s_.rows(part) + (b - s_.begin(part))) * n;
    ToF32(s_.dtype, ElementAt(args.outputs[2], 4 * at), 4 * n, scratch);
    Sum(share, b_hh + 2 * n, n, row);
    const float* before = Load(args.outputs[1], b * n, n, scratch + 4 * n);
    const float* b_ih = WorkspaceAt<float>(args, bias_at_);
    float* h = scratch + 5 * n;
    NewState(Projected(args, at) + 2 * n, b_ih + 2 * n, row, nullptr, scratch + n, before, n, scratch + 2 * n, h);
    FromF32(scratch + 2 * n, n, s_.dtype, ElementAt(args.outputs[2], 4 * at + 2 * n));
    FromF32(h, n, s_.dtype, ElementAt(args.outputs[0], at));
    CopyElements(args.outputs[0], at, n, args.outputs[1], b * n);
  }

  WorkspaceLayout layout_;
  const Sequence s_;
  const int64_t features_;
  SequenceOperand input_, input_weights_, hidden_, hidden_weights_, reset_;
  SequenceProduct input_product_;
  HiddenProducts products_;
  std::vector<absl::Status> statuses_;
  int64_t bias_at_ = 0, share_at_ = 0, scratch_at_ = 0, projected_at_ = 0;
};

// Gradients of z and n before their functions.
AMPD_CPU_CLONES void GradRow(const float* __restrict gates, const float* __restrict before, const float* __restrict dh,
                             int64_t n, float* __restrict dgates) {
  const float *z = gates + n, *fresh = gates + 2 * n;
  for (int64_t j = 0; j < n; ++j) {
    dgates[n + j] = dh[j] * (before[j] - fresh[j]) * (z[j] * (1.0f - z[j]));
    dgates[2 * n + j] = dh[j] * (1.0f - z[j]) * (1.0f - fresh[j] * fresh[j]);
  }
}

AMPD_CPU_CLONES void ResetGrad(const float* __restrict r, const float* __restrict a, const float* __restrict b,
                               int64_t n, float* __restrict dr) {
  for (int64_t j = 0; j < n; ++j) dr[j] = a[j] * b[j] * (r[j] * (1.0f - r[j]));
}

// dh of the step before: through z, through the product, and (`through_reset` not null) through r * h.
AMPD_CPU_CLONES void StateGrad(const float* __restrict gates, const float* __restrict back,
                               const float* __restrict through_reset, int64_t n, float* __restrict dh) {
  if (through_reset == nullptr) {
    for (int64_t j = 0; j < n; ++j) dh[j] = dh[j] * gates[n + j] + back[j];
  } else {
    for (int64_t j = 0; j < n; ++j) dh[j] = dh[j] * gates[n + j] + back[j] + through_reset[j] * gates[j];
  }
}

// Inputs: dy, dh_n, w_hh, y, gates, then lengths, h0.
class GruGradKernel : public runtime::Kernel {
 public:
  GruGradKernel(const NodeDesc& desc, dnnl::memory::data_type compute)
      : s_(desc, desc.inputs[0].shape, desc.inputs[0].shape[2], Flops(desc), compute),
        weights_(s_, NumElements(desc.inputs[2].shape), &layout_),
        dgates_(s_, s_.batch * (ResetFirst(desc) ? 2 : 3) * s_.hidden, &layout_, true),
        dfresh_(s_, ResetFirst(desc) ? s_.batch * s_.hidden : 0, &layout_, true),
        products_(s_, ResetFirst(desc), false, &layout_),
        statuses_(s_.parts) {
    const int64_t row = s_.hidden * 4;
    dh_at_ = layout_.Add(s_.batch * row);
    back_at_ = layout_.Add(s_.batch * row);
    through_at_ = layout_.Add(s_.batch * row);
    scratch_at_ = layout_.Add(s_.parts * kScratchRows * row);
  }

  int64_t workspace_bytes() const override { return layout_.bytes(); }

  absl::Status Launch(const KernelArgs& args) override {
    const void* w_hh = weights_.Ready(args, args.inputs[2].data, 0, args.inputs[2].size());
    return RunParts(s_, &statuses_, [&](int part) { return Part(args, part, w_hh); });
  }

 private:
  // f32 copies of the gates (4), the state before, dgates (3), dq, dy.
  static constexpr int64_t kScratchRows = 10;

  static double Flops(const NodeDesc& desc) {
    return 6.0 * static_cast<double>(NumElements(desc.inputs[0].shape)) * static_cast<double>(desc.inputs[0].shape[2]);
  }

  int64_t Length(const KernelArgs& args, int64_t b) const {
    return LengthOf(args.inputs.size() > 5 ? &args.inputs[5] : nullptr, b, s_.time);
  }

  absl::Status Part(const KernelArgs& args, int part, const void* w_hh) {
    const int64_t n = s_.hidden, begin = s_.begin(part), rows = s_.rows(part);
    absl::Status status = products_.Pack(args, part, w_hh, s_);
    float* dh = WorkspaceAt<float>(args, dh_at_) + begin * n;
    float* back = WorkspaceAt<float>(args, back_at_) + begin * n;
    float* through = WorkspaceAt<float>(args, through_at_) + begin * n;
    ToF32(s_.dtype, ElementAt(args.inputs[1], begin * n), rows * n, dh);
    for (int64_t step = s_.time; step-- > 0 && status.ok();) {
      const int64_t t = s_.at(step);
      for (int64_t b = begin; b < begin + rows; ++b) Retreat(args, part, b, t, dh + (b - begin) * n);
      if (products_.apart) {
        status = products_.fresh->Run(args, part, dfresh_.At(args, begin * n), through);
        for (int64_t b = begin; b < begin + rows; ++b) RetreatReset(args, part, b, t, through + (b - begin) * n);
        if (status.ok()) status = products_.gates->Run(args, part, dgates_.At(args, begin * 2 * n), back);
      } else {
        status = products_.all->Run(args, part, dgates_.At(args, begin * 3 * n), back);
      }
      for (int64_t b = begin; b < begin + rows; ++b) {
        if (t >= Length(args, b)) continue;
        const int64_t row = (b - begin) * n;
        const float* gates = Load(args.inputs[4], 4 * (b * s_.time + t) * n, 2 * n, Scratch(args, part));
        StateGrad(gates, back + row, products_.apart ? through + row : nullptr, n, dh + row);
      }
    }
    FromF32(dh, rows * n, s_.dtype, ElementAt(args.outputs[3], begin * n));
    return status;
  }

  float* Scratch(const KernelArgs& args, int part) const {
    return WorkspaceAt<float>(args, scratch_at_) + part * kScratchRows * s_.hidden;
  }

  void Clear(const KernelArgs& args, int64_t b, int64_t at) const {
    const int64_t n = s_.hidden;
    ClearElements(args.outputs[0], 3 * at, 3 * n);
    ClearElements(args.outputs[1], 3 * at, 3 * n);
    ClearElements(args.outputs[2], at, n);
    if (!products_.apart) return dgates_.ClearRow(args, b * 3 * n, 3 * n);
    ClearElements(args.outputs[4], 3 * at, 3 * n);
    ClearElements(args.outputs[5], at, n);
    dgates_.ClearRow(args, b * 2 * n, 2 * n);
    dfresh_.ClearRow(args, b * n, n);
  }

  // The state before time t, which is h_prev.
  void CopyBefore(const KernelArgs& args, int64_t b, int64_t t) const {
    const int64_t n = s_.hidden, at = (b * s_.time + t) * n;
    if (!s_.first(t, Length(args, b))) {
      CopyElements(args.inputs[3], (b * s_.time + s_.before(t)) * n, n, args.outputs[2], at);
    } else if (args.inputs.size() > 6) {
      CopyElements(args.inputs[6], b * n, n, args.outputs[2], at);
    } else {
      ClearElements(args.outputs[2], at, n);
    }
  }

  // Gradients of z and n, and of r where the reset is behind the product.
  void Retreat(const KernelArgs& args, int part, int64_t b, int64_t t, float* dh) const {
    const int64_t n = s_.hidden, at = (b * s_.time + t) * n;
    if (t >= Length(args, b)) return Clear(args, b, at);
    CopyBefore(args, b, t);
    float* scratch = Scratch(args, part);
    const float* gates = Load(args.inputs[4], 4 * at, 4 * n, scratch);
    const float* before = Load(args.outputs[2], at, n, scratch + 4 * n);
    float* dgates = scratch + 5 * n;
    const float* dy = Load(args.inputs[0], at, n, scratch + 9 * n);
    for (int64_t j = 0; j < n; ++j) dh[j] += dy[j];
    GradRow(gates, before, dh, n, dgates);
    if (products_.apart) {
      FromF32(dgates + n, 2 * n, s_.dtype, ElementAt(args.outputs[0], 3 * at + n));
      ClearElements(args.outputs[4], 3 * at, 2 * n);
      CopyElements(args.outputs[0], 3 * at + 2 * n, n, args.outputs[4], 3 * at + 2 * n);
      CopyElements(args.inputs[4], 4 * at + 3 * n, n, args.outputs[5], at);
      return dfresh_.PutRow(args, ElementAt(args.outputs[4], 3 * at + 2 * n), b * n, n);
    }
    ResetGrad(gates, dgates + 2 * n, gates + 3 * n, n, dgates);
    FromF32(dgates, 3 * n, s_.dtype, ElementAt(args.outputs[0], 3 * at));
    Product(dgates + 2 * n, gates, n, dgates + 3 * n);
    CopyElements(args.outputs[0], 3 * at, 2 * n, args.outputs[1], 3 * at);
    FromF32(dgates + 3 * n, n, s_.dtype, ElementAt(args.outputs[1], 3 * at + 2 * n));
    dgates_.PutRow(args, ElementAt(args.outputs[1], 3 * at), b * 3 * n, 3 * n);
  }

  // The gradient of r where the reset stands before the product, from that of r * h.
  void RetreatReset(const KernelArgs& args, int part, int64_t b, int64_t t, const float* through) const {
    const int64_t n = s_.hidden, at = (b * s_.time + t) * n;
    if (t >= Length(args, b)) return;
    float* scratch = Scratch(args, part);
    const float* gates = Load(args.inputs[4], 4 * at, n, scratch);
    const float* before = Load(args.outputs[2], at, n, scratch + 4 * n);
    ResetGrad(gates, through, before, n, scratch + 5 * n);
    FromF32(scratch + 5 * n, n, s_.dtype, ElementAt(args.outputs[0], 3 * at));
    CopyElements(args.outputs[0], 3 * at, 2 * n, args.outputs[1], 3 * at);
    ClearElements(args.outputs[1], 3 * at + 2 * n, n);
    dgates_.PutRow(args, ElementAt(args.outputs[0], 3 * at), b * 2 * n, 2 * n);
  }

  WorkspaceLayout layout_;
  const Sequence s_;
  SequenceOperand weights_, dgates_, dfresh_;
  HiddenProducts products_;
  std::vector<absl::Status> statuses_;
  int64_t dh_at_ = 0, back_at_ = 0, through_at_ = 0, scratch_at_ = 0;
};

template <typename K>
absl::StatusOr<std::unique_ptr<runtime::Kernel>> Prepare(const NodeDesc& desc) {
  return PrepareSequence(desc, [&](dnnl::memory::data_type compute) { return std::make_unique<K>(desc, compute); });
}

}  // namespace

void RegisterGru(runtime::KernelTable* table) {
  constexpr DType f = DType::kF32, i = DType::kI32;
  for (DType t : kDataTypes) {
    const std::vector<DType> all = {t, t, t, f, f, i, t}, grads = {t, t, t, t, t, i, t};
    for (int n : {3, 5, 6, 7}) {
      table->Add(ir::OpKind::kGru, {all.begin(), all.begin() + n}, {t, t, t}, Prepare<GruKernel>);
    }
    for (int n : {5, 6, 7}) {
      for (int outputs : {4, 6}) {
        table->Add(ir::OpKind::kGruGrad, {grads.begin(), grads.begin() + n}, std::vector<DType>(outputs, t),
                   Prepare<GruGradKernel>);
      }
    }
  }
}

}  // namespace ampd::cpu
