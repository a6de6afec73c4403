// LSTM (Hochreiter and Schmidhuber 1997, with forget gates and optional peepholes, Gers et al. 2002): gates in
// PyTorch's order i, f, g, o; the cell is carried in f32. One product for the inputs of all steps, then one kernel for
// all steps where it takes the layer (lstm_sequence.h); else for each step a product for the states, and one kernel for
// all that follows.
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/device_math.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/lstm_sequence.h"
#include "engine/backend/cuda/recurrent.h"

namespace ampd::cuda {
namespace {

using recurrent::ForEach;
using recurrent::InputOrNull;
using recurrent::kThreads;
using recurrent::Launcher;
using recurrent::Product;
using recurrent::Sequence;
using recurrent::StateGrads;
using runtime::KernelArgs;
using runtime::NodeDesc;

// What one unit's gates add to their products; 0 where the input is absent.
struct UnitParameters {
  const float *b_ih, *b_hh;  // [4, hidden]
  const float* peepholes;    // [3, hidden], of i, f and o

  __device__ float Bias(int gate, int64_t n, int64_t j) const {
    return b_ih == nullptr ? 0.0f : b_ih[gate * n + j] + b_hh[gate * n + j];
  }
  __device__ float Peephole(int gate, int64_t n, int64_t j) const {
    return peepholes == nullptr ? 0.0f : peepholes[gate * n + j];
  }
};

template <typename T>
struct StepTensors {
  const int32_t* lengths;
  UnitParameters parameters;
  const float *projected,
      *share;  // the inputs' part of the gates [batch, time, 4 hidden], the states' [batch, 4 hidden]
  T *h, *y, *gates, *cells;
  float* c;
};

// Time t of every sample. `projected` may be where the gates go.
template <typename T>
__global__ void __launch_bounds__(kThreads) LstmStep(Sequence s, int64_t t, StepTensors<T> v) {
  const int64_t n = s.hidden;
  ForEach(s.states(), [&](int64_t i) {
    const int64_t b = i / n, j = i % n, at = (b * s.time + t) * n + j, gates_at = 4 * (at - j) + j;
    if (t >= s.LengthOf(v.lengths, b)) {
      for (int g = 0; g < 4; ++g) v.gates[gates_at + g * n] = Store<T>(0.0f);
      v.y[at] = v.cells[at] = Store<T>(0.0f);
      return;
    }
    float a[4];
    for (int g = 0; g < 4; ++g) {
      a[g] = v.projected[gates_at + g * n] + v.share[4 * (i - j) + g * n + j] + v.parameters.Bias(g, n, j);
    }
    float c = v.c[i];
    const float in = DeviceMath::Sigmoid(a[0] + v.parameters.Peephole(0, n, j) * c);
    const float forget = DeviceMath::Sigmoid(a[1] + v.parameters.Peephole(1, n, j) * c);
    const float fresh = DeviceMath::Tanh(a[2]);
    c = forget * c + in * fresh;
    const float out = DeviceMath::Sigmoid(a[3] + v.parameters.Peephole(2, n, j) * c);
    const T h = Store<T>(out * DeviceMath::Tanh(c));
    v.c[i] = c;
    v.h[i] = v.y[at] = h;
    v.cells[at] = Store<T>(c);
    const float gates[] = {in, forget, fresh, out};
    for (int g = 0; g < 4; ++g) v.gates[gates_at + g * n] = Store<T>(gates[g]);
  });
}

class LstmKernel : public runtime::Kernel {
 public:
  static absl::StatusOr<std::unique_ptr<runtime::Kernel>> Create(Context* context, const NodeDesc& desc) {
    const Shape& x = desc.inputs[0].shape;
    const int64_t n = desc.inputs[2].shape[1];
    AMPD_ASSIGN_OR_RETURN(Product inputs, Product::Create(desc, {x[0] * x[1], 4 * n, x[2], x[2], true}, context));
    std::optional<Product> states;
    const bool peepholes = desc.inputs.size() > 8;
    if (peepholes || !TakesLstmSequence(desc.inputs[0].dtype, recurrent::SequenceOf(desc, x, n), *context)) {
      AMPD_ASSIGN_OR_RETURN(states, Product::Create(desc, {x[0], 4 * n, n, n, true}, context));
    }
    return std::unique_ptr<runtime::Kernel>(new LstmKernel(context, desc, std::move(inputs), std::move(states)));
  }

  int64_t workspace_bytes() const override { return layout_.bytes(); }

  absl::Status Launch(const KernelArgs& args) override {
    return VisitData(dtype_, [&](auto tag) { return LaunchAs<typename decltype(tag)::type>(args); });
  }

 private:
  LstmKernel(Context* context, const NodeDesc& desc, Product inputs, std::optional<Product> states)
      : launch_{context, desc.name},
        s_(recurrent::SequenceOf(desc, desc.inputs[0].shape, desc.inputs[2].shape[1])),
        dtype_(desc.inputs[0].dtype),
        inputs_(std::move(inputs)),
        states_(std::move(states)) {
    if (states_) share_at_ = layout_.Add(4 * s_.states() * 4);
    // In f32 it lies where the gates go.
    if (dtype_ != DType::kF32) projected_at_ = layout_.Add(4 * s_.states() * s_.time * 4);
    products_at_ = layout_.Add(std::max(inputs_.workspace_bytes(), states_ ? states_->workspace_bytes() : 0));
  }

  template <typename T>
  absl::Status LaunchAs(const KernelArgs& args) const {
    void* products = WorkspaceAt<void>(args, products_at_);
    float* projected = dtype_ == DType::kF32 ? args.outputs[3].as<float>() : WorkspaceAt<float>(args, projected_at_);
    AMPD_RETURN_IF_ERROR(inputs_.Run(args.inputs[0].data, args.inputs[1].data, projected, products));
    if (states_) return RunSteps<T>(args, projected, products);
    if constexpr (std::is_same_v<T, float>) {
      return absl::InternalError(absl::StrCat(launch_.name, ": no kernel takes all steps of f32"));
    } else {
      return RunLstmSequence<T>(launch_, s_,
                                {.lengths = InputOrNull<int32_t>(args, 5),
                                 .b_ih = InputOrNull<float>(args, 3),
                                 .b_hh = InputOrNull<float>(args, 4),
                                 .weights = args.inputs[2].as<T>(),
                                 .projected = projected,
                                 .h0 = InputOrNull<T>(args, 6),
                                 .c0 = InputOrNull<float>(args, 7),
                                 .y = args.outputs[0].as<T>(),
                                 .h_n = args.outputs[1].as<T>(),
                                 .c_n = args.outputs[2].as<float>(),
                                 .gates = args.outputs[3].as<T>(),
                                 .cells = args.outputs[4].as<T>()});
    }
  }

  template <typename T>
  absl::Status RunSteps(const KernelArgs& args, const float* projected, void* products) const {
    float* share = WorkspaceAt<float>(args, share_at_);
    const StepTensors<T> v = {
        .lengths = InputOrNull<int32_t>(args, 5),
        .parameters = {InputOrNull<float>(args, 3), InputOrNull<float>(args, 4), InputOrNull<float>(args, 8)},
        .projected = projected,
        .share = share,
        .h = args.outputs[1].as<T>(),
        .y = args.outputs[0].as<T>(),
        .gates = args.outputs[3].as<T>(),
        .cells = args.outputs[4].as<T>(),
        .c = args.outputs[2].as<float>()};
    const int64_t n = s_.states();
    AMPD_RETURN_IF_ERROR(launch_(recurrent::StartStates<T>, n, InputOrNull<T>(args, 6), n, v.h));
    AMPD_RETURN_IF_ERROR(launch_(recurrent::StartStates<float>, n, InputOrNull<float>(args, 7), n, v.c));
    for (int64_t step = 0; step < s_.time; ++step) {
      AMPD_RETURN_IF_ERROR(states_->Run(v.h, args.inputs[2].data, share, products));
      AMPD_RETURN_IF_ERROR(launch_(LstmStep<T>, n, s_, s_.At(step), v));
    }
    return absl::OkStatus();
  }

  const Launcher launch_;
  const Sequence s_;
  const DType dtype_;
  const Product inputs_;
  const std::optional<Product> states_;  // none: one kernel takes all steps
  WorkspaceLayout layout_;
  int64_t products_at_ = 0, share_at_ = 0, projected_at_ = 0;
};

// Inputs of lstm_grad.
enum GradInput { kDy, kDh, kDc, kWeights, kY, kGates, kCells, kLengths, kH0, kC0, kPeepholes };

template <typename T>
struct GradTensors {
  const int32_t* lengths;
  UnitParameters parameters;  // only peepholes
  const T *dy, *dh_n, *gates, *cells;
  const float *dc_n, *c0;
  StateGrads grads;
  float* dc;
  T* dgates;
  double* peephole_sums;  // [batch, 3, hidden], or null
};

// Time t of every sample; `later` is the time that was done before it, or none (-1).
template <typename T>
__global__ void __launch_bounds__(kThreads) LstmStepGrad(Sequence s, int64_t t, int64_t later, GradTensors<T> v) {
  const int64_t n = s.hidden;
  ForEach(s.states(), [&](int64_t i) {
    const int64_t b = i / n, j = i % n, at = (b * s.time + t) * n + j, gates_at = 4 * (at - j) + j;
    const int64_t length = s.LengthOf(v.lengths, b);
    float dh = later < 0 ? Load(v.dh_n[i]) : v.grads.From(s, v.lengths, later, b, i);
    float dc = later < 0 ? v.dc_n[i] : v.dc[i];
    if (t >= length) {
      v.grads.kept[i] = dh;
      v.dc[i] = dc;
      for (int g = 0; g < 4; ++g) v.dgates[gates_at + g * n] = Store<T>(0.0f);
      return;
    }
    dh += Load(v.dy[at]);
    const float in = Load(v.gates[gates_at]), forget = Load(v.gates[gates_at + n]);
    const float fresh = Load(v.gates[gates_at + 2 * n]), out = Load(v.gates[gates_at + 3 * n]);
    float before = v.c0 == nullptr ? 0.0f : v.c0[i];
    if (!s.IsFirst(t, length)) before = Load(v.cells[(b * s.time + s.Before(t)) * n + j]);
    const float c = Load(v.cells[at]), squashed = DeviceMath::Tanh(c);
    const float d_out = dh * squashed * (out * (1.0f - out));
    dc += dh * out * (1.0f - squashed * squashed) + d_out * v.parameters.Peephole(2, n, j);
    const float d_in = dc * fresh * (in * (1.0f - in)), d_forget = dc * before * (forget * (1.0f - forget));
    const float d_fresh = dc * in * (1.0f - fresh * fresh);
    v.dc[i] = dc * forget + d_in * v.parameters.Peephole(0, n, j) + d_forget * v.parameters.Peephole(1, n, j);
    v.grads.kept[i] = 0;
    const float dgates[] = {d_in, d_forget, d_fresh, d_out};
    for (int g = 0; g < 4; ++g) v.dgates[gates_at + g * n] = Store<T>(dgates[g]);
    if (v.peephole_sums == nullptr) return;
    double* sums = v.peephole_sums + 3 * (i - j) + j;
    sums[0] += static_cast<double>(d_in) * static_cast<double>(before);
    sums[n] += static_cast<double>(d_forget) * static_cast<double>(before);
    sums[2 * n] += static_cast<double>(d_out) * static_cast<double>(c);
  });
}

// Each of `n` columns summed over the batch.
__global__ void __launch_bounds__(kThreads) SumPeepholes(const double* sums, int64_t batch, int64_t n, float* to) {
  ForEach(n, [&](int64_t i) {
    double sum = 0;
    for (int64_t b = 0; b < batch; ++b) sum += sums[b * n + i];
    to[i] = static_cast<float>(sum);
  });
}

class LstmGradKernel : public runtime::Kernel {
 public:
  static absl::StatusOr<std::unique_ptr<runtime::Kernel>> Create(Context* context, const NodeDesc& desc) {
    const Shape& dy = desc.inputs[kDy].shape;
    // The rows of a time step lie among those of the others.
    const Product::Extents extents = {dy[0], dy[2], 4 * dy[2], dy[1] * 4 * dy[2], false};
    std::optional<Product> back;
    const bool peepholes = desc.inputs.size() > kPeepholes;
    if (peepholes || !TakesLstmSequence(desc.inputs[kDy].dtype, recurrent::SequenceOf(desc, dy, dy[2]), *context)) {
      AMPD_ASSIGN_OR_RETURN(back, Product::Create(desc, extents, context));
    }
    return std::unique_ptr<runtime::Kernel>(new LstmGradKernel(context, desc, std::move(back)));
  }

  int64_t workspace_bytes() const override { return layout_.bytes(); }

  absl::Status Launch(const KernelArgs& args) override {
    return VisitData(dtype_, [&](auto tag) { return LaunchAs<typename decltype(tag)::type>(args); });
  }

 private:
  LstmGradKernel(Context* context, const NodeDesc& desc, std::optional<Product> back)
      : launch_{context, desc.name},
        s_(recurrent::SequenceOf(desc, desc.inputs[kDy].shape, desc.inputs[kDy].shape[2])),
        dtype_(desc.inputs[kDy].dtype),
        back_(std::move(back)) {
    if (!back_) return;
    kept_at_ = layout_.Add(s_.states() * 4);
    back_at_ = layout_.Add(s_.states() * 4);
    if (desc.inputs.size() > kPeepholes) sums_at_ = layout_.Add(3 * s_.states() * 8);
    product_at_ = layout_.Add(back_->workspace_bytes());
  }

  template <typename T>
  GradTensors<T> TensorsOf(const KernelArgs& args) const {
    const auto in = [&](size_t i) { return args.inputs[i].as<T>(); };
    const bool peepholes = args.inputs.size() > kPeepholes;
    return {.lengths = InputOrNull<int32_t>(args, kLengths),
            .parameters = {nullptr, nullptr, InputOrNull<float>(args, kPeepholes)},
            .dy = in(kDy),
            .dh_n = in(kDh),
            .gates = in(kGates),
            .cells = in(kCells),
            .dc_n = args.inputs[kDc].as<float>(),
            .c0 = InputOrNull<float>(args, kC0),
            .grads = {WorkspaceAt<float>(args, kept_at_), WorkspaceAt<float>(args, back_at_), nullptr},
            .dc = args.outputs[3].as<float>(),
            .dgates = args.outputs[0].as<T>(),
            .peephole_sums = peepholes ? WorkspaceAt<double>(args, sums_at_) : nullptr};
  }

  template <typename T>
  absl::Status LaunchAs(const KernelArgs& args) const {
    AMPD_RETURN_IF_ERROR(launch_(recurrent::StatesBefore<T>, s_.states() * s_.time, s_,
                                 InputOrNull<int32_t>(args, kLengths), args.inputs[kY].as<T>(),
                                 InputOrNull<T>(args, kH0), args.outputs[1].as<T>()));
    if (back_) return RunSteps<T>(args);
    if constexpr (std::is_same_v<T, float>) {
      return absl::InternalError(absl::StrCat(launch_.name, ": no kernel takes all steps of f32"));
    } else {
      return RunLstmSequenceGrad<T>(launch_, s_,
                                    {.lengths = InputOrNull<int32_t>(args, kLengths),
                                     .dy = args.inputs[kDy].as<T>(),
                                     .dh_n = args.inputs[kDh].as<T>(),
                                     .dc_n = args.inputs[kDc].as<float>(),
                                     .weights = args.inputs[kWeights].as<T>(),
                                     .gates = args.inputs[kGates].as<T>(),
                                     .cells = args.inputs[kCells].as<T>(),
                                     .c0 = InputOrNull<float>(args, kC0),
                                     .dgates = args.outputs[0].as<T>(),
                                     .dh0 = args.outputs[2].as<T>(),
                                     .dc0 = args.outputs[3].as<float>()});
    }
  }

  template <typename T>
  absl::Status RunSteps(const KernelArgs& args) const {
    const GradTensors<T> v = TensorsOf<T>(args);
    const int64_t n = s_.states();
    if (v.peephole_sums != nullptr) {
      AMPD_RETURN_IF_ERROR(
          launch_(recurrent::StartStates<double>, 3 * n, static_cast<const double*>(nullptr), 3 * n, v.peephole_sums));
    }
    int64_t later = -1;
    for (int64_t step = s_.time; step-- > 0; later = s_.At(step)) {
      AMPD_RETURN_IF_ERROR(launch_(LstmStepGrad<T>, n, s_, s_.At(step), later, v));
      AMPD_RETURN_IF_ERROR(back_->Run(v.dgates + s_.At(step) * 4 * s_.hidden, args.inputs[kWeights].data, v.grads.back,
                                      WorkspaceAt<void>(args, product_at_)));
    }
    AMPD_RETURN_IF_ERROR(
        launch_(recurrent::FinishStates<T>, n, s_, v.lengths, v.grads, later, args.outputs[2].as<T>()));
    if (v.peephole_sums == nullptr) return absl::OkStatus();
    return launch_(SumPeepholes, 3 * s_.hidden, v.peephole_sums, s_.batch, 3 * s_.hidden, args.outputs[4].as<float>());
  }

  const Launcher launch_;
  const Sequence s_;
  const DType dtype_;
  const std::optional<Product> back_;  // none: one kernel takes all steps
  WorkspaceLayout layout_;
  int64_t product_at_ = 0, kept_at_ = 0, back_at_ = 0, sums_at_ = 0;
};

}  // namespace

void RegisterLstm(runtime::KernelTable* table, Context* context) {
  constexpr DType f = DType::kF32, i = DType::kI32;
  const auto forward = [context](const NodeDesc& desc) { return LstmKernel::Create(context, desc); };
  const auto gradient = [context](const NodeDesc& desc) { return LstmGradKernel::Create(context, desc); };
  for (DType t : kDataTypes) {
    const std::vector<DType> all = {t, t, t, f, f, i, t, f, f}, grads = {t, t, f, t, t, t, t, i, t, f, f};
    for (int n : {3, 5, 6, 8, 9}) {
      table->Add(ir::OpKind::kLstm, {all.begin(), all.begin() + n}, {t, t, f, t, t}, forward);
    }
    for (int n : {7, 8, 10, 11}) {
      std::vector<DType> outputs = {t, t, t, f};
      if (n == 11) outputs.push_back(f);
      table->Add(ir::OpKind::kLstmGrad, {grads.begin(), grads.begin() + n}, outputs, gradient);
    }
  }
}

}  // namespace ampd::cuda
