// LSTM (Hochreiter and Schmidhuber 1997, with forget gates and optional peepholes, Gers et al. 2002): gates in
// PyTorch's order i, f, g, o; the cell is carried in f32.
#include <cstring>

#include "engine/backend/cpu/recurrent.h"
#include "engine/backend/cpu/vector_math.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

// a: the input's share of the gates, becomes the gates; `peep` the peepholes of i, f and o; c the cell; h the output.
AMPD_CPU_CLONES void GateRow(const float* __restrict hidden_share, const float* __restrict bias,
                             const float* __restrict peep, int64_t n, float* __restrict a, float* __restrict c,
                             float* __restrict h) {
  float *i = a, *f = a + n, *g = a + 2 * n, *o = a + 3 * n;
  for (int64_t j = 0; j < 4 * n; ++j) a[j] = (a[j] + hidden_share[j]) + bias[j];
  for (int64_t j = 0; j < n; ++j) i[j] = SigmoidF(i[j] + peep[j] * c[j]);
  for (int64_t j = 0; j < n; ++j) f[j] = SigmoidF(f[j] + peep[n + j] * c[j]);
  for (int64_t j = 0; j < n; ++j) g[j] = TanhF(g[j]);
  for (int64_t j = 0; j < n; ++j) c[j] = f[j] * c[j] + i[j] * g[j];
  for (int64_t j = 0; j < n; ++j) o[j] = SigmoidF(o[j] + peep[2 * n + j] * c[j]);
  for (int64_t j = 0; j < n; ++j) h[j] = o[j] * TanhF(c[j]);
}

class LstmKernel : public runtime::Kernel {
 public:
  LstmKernel(const NodeDesc& desc, dnnl::memory::data_type compute)
      : s_(desc, desc.inputs[0].shape, desc.inputs[2].shape[1], Flops(desc), compute),
        features_(desc.inputs[0].shape[2]),
        input_(s_, NumElements(desc.inputs[0].shape), &layout_),
        input_weights_(s_, NumElements(desc.inputs[1].shape), &layout_),
        hidden_(s_, s_.batch * s_.hidden, &layout_),
        hidden_weights_(s_, NumElements(desc.inputs[2].shape), &layout_),
        input_product_(s_, s_.time, {.inner = features_, .columns = 4 * s_.hidden, .b_transposed = true}, &layout_),
        hidden_product_(s_, 1, {.inner = s_.hidden, .columns = 4 * s_.hidden, .b_transposed = true}, &layout_),
        statuses_(s_.parts) {
    bias_at_ = layout_.Add(4 * s_.hidden * 4);
    peep_at_ = layout_.Add(3 * s_.hidden * 4);
    share_at_ = layout_.Add(s_.batch * 4 * s_.hidden * 4);
    row_at_ = layout_.Add(s_.batch * s_.hidden * 4);
    if (s_.dtype != DType::kF32) projected_at_ = layout_.Add(s_.batch * s_.time * 4 * s_.hidden * 4);
  }

  int64_t workspace_bytes() const override { return layout_.bytes(); }

  absl::Status Launch(const KernelArgs& args) override {
    const int64_t n = s_.hidden;
    auto* bias = WorkspaceAt<float>(args, bias_at_);
    auto* peep = WorkspaceAt<float>(args, peep_at_);
    std::memset(bias, 0, static_cast<size_t>(4 * n) * sizeof(float));
    std::memset(peep, 0, static_cast<size_t>(3 * n) * sizeof(float));
    for (size_t i = 3; i < 5 && args.inputs.size() > 3; ++i) {
      for (int64_t j = 0; j < 4 * n; ++j) bias[j] += args.inputs[i].as<float>()[j];
    }
    if (args.inputs.size() > 8) std::memcpy(peep, args.inputs[8].data, static_cast<size_t>(3 * n) * sizeof(float));
    const void* w_ih = input_weights_.Ready(args, args.inputs[1].data, 0, args.inputs[1].size());
    const void* w_hh = hidden_weights_.Ready(args, args.inputs[2].data, 0, args.inputs[2].size());
    return RunParts(s_, &statuses_, [&](int part) { return Part(args, part, w_ih, w_hh); });
  }

 private:
  static double Flops(const NodeDesc& desc) {
    const Shape& x = desc.inputs[0].shape;
    return 2.0 * static_cast<double>(x[0] * x[1]) *
           static_cast<double>(NumElements(desc.inputs[1].shape) + NumElements(desc.inputs[2].shape));
  }

  // The input's share of the gates of all of a part's steps, in one product; in f32 at once where the gates go.
  absl::Status Project(const KernelArgs& args, int part, const void* w_ih, float* projected) {
    const int64_t first = s_.begin(part) * s_.time * features_;
    const void* x = input_.Ready(args, ElementAt(args.inputs[0], first), first, s_.rows(part) * s_.time * features_);
    absl::Status status = input_product_.Pack(args, part, w_ih);
    if (!status.ok()) return status;
    return input_product_.Run(args, part, x, projected + s_.begin(part) * s_.time * 4 * s_.hidden);
  }

  void Start(const KernelArgs& args, int part) const {
    const int64_t first = s_.begin(part) * s_.hidden, n = s_.rows(part) * s_.hidden;
    const bool given = args.inputs.size() > 6;
    given ? CopyElements(args.inputs[6], first, n, args.outputs[1], first) : ClearElements(args.outputs[1], first, n);
    given ? CopyElements(args.inputs[7], first, n, args.outputs[2], first) : ClearElements(args.outputs[2], first, n);
  }

  absl::Status Part(const KernelArgs& args, int part, const void* w_ih, const void* w_hh) {
    const int64_t n = s_.hidden, begin = s_.begin(part), rows = s_.rows(part);
    auto* projected = s_.dtype == DType::kF32 ? args.outputs[3].as<float>() : WorkspaceAt<float>(args, projected_at_);
    absl::Status status = Project(args, part, w_ih, projected);
    if (status.ok()) status = hidden_product_.Pack(args, part, w_hh);
    Start(args, part);
    const TensorView* lengths = args.inputs.size() > 5 ? &args.inputs[5] : nullptr;
    float* share = WorkspaceAt<float>(args, share_at_) + begin * 4 * n;
    for (int64_t step = 0; step < s_.time && status.ok(); ++step) {
      const int64_t t = s_.at(step);
      const void* h = hidden_.Ready(args, ElementAt(args.outputs[1], begin * n), begin * n, rows * n);
      status = hidden_product_.Run(args, part, h, share);
      for (int64_t b = begin; b < begin + rows; ++b) {
        if (t < LengthOf(lengths, b, s_.time)) {
          Advance(args, b, t, share + (b - begin) * 4 * n, projected + (b * s_.time + t) * 4 * n);
        } else {
          ClearElements(args.outputs[0], (b * s_.time + t) * n, n);
          ClearElements(args.outputs[3], (b * s_.time + t) * 4 * n, 4 * n);
          ClearElements(args.outputs[4], (b * s_.time + t) * n, n);
        }
      }
    }
    return status;
  }

  // One step of one sample. The outputs h_n and c_n hold the running state.
  void Advance(const KernelArgs& args, int64_t b, int64_t t, const float* share, float* gates) const {
    const int64_t n = s_.hidden, at = (b * s_.time + t) * n;
    float* c = args.outputs[2].as<float>() + b * n;
    float* h = Target(args.outputs[0], at, WorkspaceAt<float>(args, row_at_) + b * n);
    GateRow(share, WorkspaceAt<float>(args, bias_at_), WorkspaceAt<float>(args, peep_at_), n, gates, c, h);
    Store(args.outputs[0], at, n, h);
    CopyElements(args.outputs[0], at, n, args.outputs[1], b * n);
    Store(args.outputs[3], 4 * at, 4 * n, gates);
    FromF32(c, n, args.outputs[4].dtype, ElementAt(args.outputs[4], at));
  }

  WorkspaceLayout layout_;
  const Sequence s_;
  const int64_t features_;
  SequenceOperand input_, input_weights_, hidden_, hidden_weights_;
  SequenceProduct input_product_, hidden_product_;
  std::vector<absl::Status> statuses_;
  int64_t bias_at_ = 0, peep_at_ = 0, share_at_ = 0, row_at_ = 0, projected_at_ = 0;
};

// One row of the gradient. dh and dc of this step become dc of the step before; dgates of the gates before their
// functions; peepholes' sums in dpeep.
AMPD_CPU_CLONES void GradRow(const float* __restrict gates, const float* __restrict c, const float* __restrict before,
                             const float* __restrict peep, const float* __restrict dh, int64_t n, float* __restrict dc,
                             float* __restrict dgates) {
  const float *i = gates, *f = gates + n, *g = gates + 2 * n, *o = gates + 3 * n;
  float *di = dgates, *df = dgates + n, *dg = dgates + 2 * n, *d_o = dgates + 3 * n;
  for (int64_t j = 0; j < n; ++j) {
    const float squashed = TanhF(c[j]);
    d_o[j] = dh[j] * squashed * (o[j] * (1.0f - o[j]));
    dc[j] += dh[j] * o[j] * (1.0f - squashed * squashed) + d_o[j] * peep[2 * n + j];
  }
  for (int64_t j = 0; j < n; ++j) {
    di[j] = dc[j] * g[j] * (i[j] * (1.0f - i[j]));
    df[j] = dc[j] * before[j] * (f[j] * (1.0f - f[j]));
    dg[j] = dc[j] * i[j] * (1.0f - g[j] * g[j]);
    dc[j] = dc[j] * f[j] + di[j] * peep[j] + df[j] * peep[n + j];
  }
}

// Inputs: dy, dh_n, dc_n, w_hh, y, gates, cells, then lengths, h0, c0, peepholes.
class LstmGradKernel : public runtime::Kernel {
 public:
  LstmGradKernel(const NodeDesc& desc, dnnl::memory::data_type compute)
      : s_(desc, desc.inputs[0].shape, desc.inputs[0].shape[2], Flops(desc), compute),
        weights_(s_, NumElements(desc.inputs[3].shape), &layout_),
        dgates_(s_, s_.batch * 4 * s_.hidden, &layout_, true),
        product_(s_, 1, {.inner = 4 * s_.hidden, .columns = s_.hidden}, &layout_),
        statuses_(s_.parts),
        peepholes_(desc.inputs.size() > 10) {
    const int64_t row = s_.hidden * 4;
    dh_at_ = layout_.Add(s_.batch * row);
    back_at_ = layout_.Add(s_.batch * row);
    scratch_at_ = layout_.Add(s_.parts * kScratchRows * row);
    peep_at_ = layout_.Add(3 * row);
    if (peepholes_) sums_at_ = layout_.Add(s_.parts * 3 * s_.hidden * static_cast<int64_t>(sizeof(double)));
  }

  int64_t workspace_bytes() const override { return layout_.bytes(); }

  absl::Status Launch(const KernelArgs& args) override {
    const int64_t n = s_.hidden;
    auto* peep = WorkspaceAt<float>(args, peep_at_);
    std::memset(peep, 0, static_cast<size_t>(3 * n) * sizeof(float));
    if (peepholes_) std::memcpy(peep, args.inputs[10].data, static_cast<size_t>(3 * n) * sizeof(float));
    const void* w_hh = weights_.Ready(args, args.inputs[3].data, 0, args.inputs[3].size());
    absl::Status status = RunParts(s_, &statuses_, [&](int part) { return Part(args, part, w_hh); });
    if (peepholes_ && status.ok()) FoldPeepholes(args);
    return status;
  }

 private:
  // f32 copies of gates (4), cell, cell before, and dgates (4).
  static constexpr int64_t kScratchRows = 10;

  static double Flops(const NodeDesc& desc) {
    return 8.0 * static_cast<double>(NumElements(desc.inputs[0].shape)) * static_cast<double>(desc.inputs[0].shape[2]);
  }

  absl::Status Part(const KernelArgs& args, int part, const void* w_hh) {
    const int64_t n = s_.hidden, begin = s_.begin(part), rows = s_.rows(part);
    absl::Status status = product_.Pack(args, part, w_hh);
    float* dh = WorkspaceAt<float>(args, dh_at_) + begin * n;
    ToF32(s_.dtype, ElementAt(args.inputs[1], begin * n), rows * n, dh);
    CopyElements(args.inputs[2], begin * n, rows * n, args.outputs[3], begin * n);
    if (peepholes_) std::fill_n(WorkspaceAt<double>(args, sums_at_) + part * 3 * n, 3 * n, 0.0);
    const TensorView* lengths = args.inputs.size() > 7 ? &args.inputs[7] : nullptr;
    float* back = WorkspaceAt<float>(args, back_at_) + begin * n;
    for (int64_t step = s_.time; step-- > 0 && status.ok();) {
      const int64_t t = s_.at(step);
      for (int64_t b = begin; b < begin + rows; ++b) {
        Retreat(args, part, b, t, LengthOf(lengths, b, s_.time), dh + (b - begin) * n);
      }
      status = product_.Run(args, part, dgates_.At(args, begin * 4 * n), back);
      for (int64_t b = begin; b < begin + rows; ++b) {
        if (t >= LengthOf(lengths, b, s_.time)) continue;
        std::memcpy(dh + (b - begin) * n, back + (b - begin) * n, static_cast<size_t>(n) * sizeof(float));
      }
    }
    FromF32(dh, rows * n, s_.dtype, ElementAt(args.outputs[2], begin * n));
    return status;
  }

  // One step of one sample: its gates' gradients, and h_prev.
  void Retreat(const KernelArgs& args, int part, int64_t b, int64_t t, int64_t length, float* dh) const {
    const int64_t n = s_.hidden, at = (b * s_.time + t) * n;
    if (t >= length) {
      ClearElements(args.outputs[0], 4 * at, 4 * n);
      ClearElements(args.outputs[1], at, n);
      dgates_.ClearRow(args, b * 4 * n, 4 * n);
      return;
    }
    float* scratch = WorkspaceAt<float>(args, scratch_at_) + part * kScratchRows * n;
    const float* gates = Load(args.inputs[5], 4 * at, 4 * n, scratch);
    const float* c = Load(args.inputs[6], at, n, scratch + 4 * n);
    const float* before = Before(args, b, t, length, scratch + 5 * n);
    float* dgates = scratch + 6 * n;
    AddTo(dh, Load(args.inputs[0], at, n, dgates), n);
    float* dc = args.outputs[3].as<float>() + b * n;
    GradRow(gates, c, before, WorkspaceAt<float>(args, peep_at_), dh, n, dc, dgates);
    if (peepholes_) AddPeepholes(args, part, dgates, before, c);
    FromF32(dgates, 4 * n, s_.dtype, ElementAt(args.outputs[0], 4 * at));
    dgates_.PutRow(args, ElementAt(args.outputs[0], 4 * at), b * 4 * n, 4 * n);
  }

  // The cell before time t, and h_prev on the way.
  const float* Before(const KernelArgs& args, int64_t b, int64_t t, int64_t length, float* scratch) const {
    const int64_t n = s_.hidden, at = (b * s_.time + t) * n, earlier = (b * s_.time + s_.before(t)) * n;
    if (!s_.first(t, length)) {
      CopyElements(args.inputs[4], earlier, n, args.outputs[1], at);
      return Load(args.inputs[6], earlier, n, scratch);
    }
    if (args.inputs.size() > 8) {
      CopyElements(args.inputs[8], b * n, n, args.outputs[1], at);
      return args.inputs[9].as<float>() + b * n;
    }
    ClearElements(args.outputs[1], at, n);
    std::fill_n(scratch, n, 0.0f);
    return scratch;
  }

  static void AddTo(float* sum, const float* x, int64_t n) {
    for (int64_t j = 0; j < n; ++j) sum[j] += x[j];
  }

  void AddPeepholes(const KernelArgs& args, int part, const float* dgates, const float* before, const float* c) const {
    const int64_t n = s_.hidden;
    double* sums = WorkspaceAt<double>(args, sums_at_) + part * 3 * n;
    for (int64_t j = 0; j < n; ++j) {
      sums[j] += static_cast<double>(dgates[j]) * static_cast<double>(before[j]);
      sums[n + j] += static_cast<double>(dgates[n + j]) * static_cast<double>(before[j]);
      sums[2 * n + j] += static_cast<double>(dgates[3 * n + j]) * static_cast<double>(c[j]);
    }
  }

  void FoldPeepholes(const KernelArgs& args) const {
    for (int64_t j = 0; j < 3 * s_.hidden; ++j) {
      double sum = 0;
      for (int p = 0; p < s_.parts; ++p) sum += WorkspaceAt<double>(args, sums_at_)[p * 3 * s_.hidden + j];
      args.outputs[4].as<float>()[j] = static_cast<float>(sum);
    }
  }

  WorkspaceLayout layout_;
  const Sequence s_;
  SequenceOperand weights_, dgates_;
  SequenceProduct product_;
  std::vector<absl::Status> statuses_;
  const bool peepholes_;
  int64_t dh_at_ = 0, back_at_ = 0, scratch_at_ = 0, peep_at_ = 0, sums_at_ = 0;
};

template <typename K>
absl::StatusOr<std::unique_ptr<runtime::Kernel>> Prepare(const NodeDesc& desc) {
  return PrepareSequence(desc, [&](dnnl::memory::data_type compute) { return std::make_unique<K>(desc, compute); });
}

}  // namespace

void RegisterLstm(runtime::KernelTable* table) {
  constexpr DType f = DType::kF32, i = DType::kI32;
  for (DType t : kDataTypes) {
    const std::vector<DType> all = {t, t, t, f, f, i, t, f, f}, grads = {t, t, f, t, t, t, t, i, t, f, f};
    for (int n : {3, 5, 6, 8, 9}) {
      table->Add(ir::OpKind::kLstm, {all.begin(), all.begin() + n}, {t, t, f, t, t}, Prepare<LstmKernel>);
    }
    for (int n : {7, 8, 10, 11}) {
      std::vector<DType> outputs = {t, t, t, f};
      if (n == 11) outputs.push_back(f);
      table->Add(ir::OpKind::kLstmGrad, {grads.begin(), grads.begin() + n}, outputs, Prepare<LstmGradKernel>);
    }
  }
}

}  // namespace ampd::cpu
