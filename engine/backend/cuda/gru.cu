// GRU (Cho et al. 2014): gates in PyTorch's order r, z, n. The reset gate acts behind the hidden product (PyTorch,
// linear_before_reset) or before it (the paper, ONNX's default), when a step has two products.
#include "engine/backend/cuda/device_math.h"
#include "engine/backend/cuda/dispatch.h"
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

bool ResetFirst(const NodeDesc& desc) { return desc.attributes.Int("linear_before_reset", 1) == 0; }

template <typename T>
struct StepTensors {
  const int32_t* lengths;
  const float *b_ih, *b_hh;  // [3, hidden], or null
  const float* projected;    // the inputs' part of the gates [batch, time, 3 hidden]
  const float* share;        // the states' [batch, 3 hidden], or of one product at a time
  T *h, *y, *gates;          // gates: r, z, n, and U h + b_hh or r h

  __device__ float Input(int64_t row, int gate, int64_t n, int64_t j) const {
    return projected[(3 * row + gate) * n + j] + (b_ih == nullptr ? 0.0f : b_ih[gate * n + j]);
  }
  // `at`: of the product's result.
  __device__ float Hidden(int64_t at, int gate, int64_t n, int64_t j) const {
    return share[at] + (b_hh == nullptr ? 0.0f : b_hh[gate * n + j]);
  }
  __device__ void Clear(int64_t row, int64_t n, int64_t j) const {
    y[row * n + j] = T{};
    for (int g = 0; g < 4; ++g) gates[(4 * row + g) * n + j] = T{};
  }
  // The state after the step.
  __device__ void Finish(float fresh, float z, int64_t row, int64_t i, int64_t j, int64_t n) const {
    y[row * n + j] = h[i] = Store<T>((1.0f - z) * fresh + z * Load(h[i]));
    gates[(4 * row + 2) * n + j] = Store<T>(fresh);
  }
};

// Time t of every sample, the reset gate behind the product.
template <typename T>
__global__ void __launch_bounds__(kThreads) GruStep(Sequence s, int64_t t, StepTensors<T> v) {
  const int64_t n = s.hidden;
  ForEach(s.states(), [&](int64_t i) {
    const int64_t b = i / n, j = i % n, row = b * s.time + t, share = 3 * (i - j) + j;
    if (t >= s.LengthOf(v.lengths, b)) return v.Clear(row, n, j);
    const float r = DeviceMath::Sigmoid(v.Input(row, 0, n, j) + v.Hidden(share, 0, n, j));
    const float z = DeviceMath::Sigmoid(v.Input(row, 1, n, j) + v.Hidden(share + n, 1, n, j));
    const float q = v.Hidden(share + 2 * n, 2, n, j);
    T* gates = v.gates + 4 * row * n + j;
    gates[0] = Store<T>(r);
    gates[n] = Store<T>(z);
    gates[3 * n] = Store<T>(q);
    v.Finish(DeviceMath::Tanh(v.Input(row, 2, n, j) + r * q), z, row, i, j, n);
  });
}

// The first half of a step with the reset before the product: r, z, and r h for the product.
template <typename T>
__global__ void __launch_bounds__(kThreads) GruResetStep(Sequence s, int64_t t, StepTensors<T> v) {
  const int64_t n = s.hidden;
  ForEach(s.states(), [&](int64_t i) {
    const int64_t b = i / n, j = i % n, row = b * s.time + t, share = 2 * (i - j) + j;
    if (t >= s.LengthOf(v.lengths, b)) return v.Clear(row, n, j);
    const float r = DeviceMath::Sigmoid(v.Input(row, 0, n, j) + v.Hidden(share, 0, n, j));
    const float z = DeviceMath::Sigmoid(v.Input(row, 1, n, j) + v.Hidden(share + n, 1, n, j));
    T* gates = v.gates + 4 * row * n + j;
    gates[0] = Store<T>(r);
    gates[n] = Store<T>(z);
    gates[3 * n] = Store<T>(r * Load(v.h[i]));
  });
}

// The second half, when `share` is the product with r h.
template <typename T>
__global__ void __launch_bounds__(kThreads) GruNewStep(Sequence s, int64_t t, StepTensors<T> v) {
  const int64_t n = s.hidden;
  ForEach(s.states(), [&](int64_t i) {
    const int64_t b = i / n, j = i % n, row = b * s.time + t;
    if (t >= s.LengthOf(v.lengths, b)) return;
    const float z = Load(v.gates[(4 * row + 1) * n + j]);
    v.Finish(DeviceMath::Tanh(v.Input(row, 2, n, j) + v.Hidden(i, 2, n, j)), z, row, i, j, n);
  });
}

// Products with w_hh: with all of it, or apart with the rows of r and z and those of n.
struct HiddenProducts {
  bool apart = false;
  absl::optional<Product> all, gates, fresh;

  int64_t workspace_bytes() const {
    if (!apart) return all->workspace_bytes();
    return std::max(gates->workspace_bytes(), fresh->workspace_bytes());
  }
};

class GruKernel : public runtime::Kernel {
 public:
  static absl::StatusOr<std::unique_ptr<runtime::Kernel>> Create(Context* context, const NodeDesc& desc) {
    const Shape& x = desc.inputs[0].shape;
    const int64_t n = desc.inputs[2].shape[1];
    AMPD_ASSIGN_OR_RETURN(Product inputs, Product::Create(desc, {x[0] * x[1], 3 * n, x[2], x[2], true}, context));
    HiddenProducts hidden{.apart = ResetFirst(desc)};
    if (hidden.apart) {
      AMPD_ASSIGN_OR_RETURN(hidden.gates, Product::Create(desc, {x[0], 2 * n, n, n, true}, context));
      // Reads r h where the gates are kept.
      AMPD_ASSIGN_OR_RETURN(hidden.fresh, Product::Create(desc, {x[0], n, n, x[1] * 4 * n, true}, context));
    } else {
      AMPD_ASSIGN_OR_RETURN(hidden.all, Product::Create(desc, {x[0], 3 * n, n, n, true}, context));
    }
    return std::unique_ptr<runtime::Kernel>(new GruKernel(context, desc, std::move(inputs), std::move(hidden)));
  }

  int64_t workspace_bytes() const override { return layout_.bytes(); }

  absl::Status Launch(const KernelArgs& args) override {
    return VisitData(dtype_, [&](auto tag) { return LaunchAs<typename decltype(tag)::type>(args); });
  }

 private:
  GruKernel(Context* context, const NodeDesc& desc, Product inputs, HiddenProducts hidden)
      : launch_{context, desc.name},
        s_(recurrent::SequenceOf(desc, desc.inputs[0].shape, desc.inputs[2].shape[1])),
        dtype_(desc.inputs[0].dtype),
        inputs_(std::move(inputs)),
        hidden_(std::move(hidden)) {
    share_at_ = layout_.Add(3 * s_.states() * 4);
    projected_at_ = layout_.Add(3 * s_.states() * s_.time * 4);
    products_at_ = layout_.Add(std::max(inputs_.workspace_bytes(), hidden_.workspace_bytes()));
  }

  template <typename T>
  absl::Status LaunchAs(const KernelArgs& args) const {
    const StepTensors<T> v = {.lengths = InputOrNull<int32_t>(args, 5),
                              .b_ih = InputOrNull<float>(args, 3),
                              .b_hh = InputOrNull<float>(args, 4),
                              .projected = WorkspaceAt<float>(args, projected_at_),
                              .share = WorkspaceAt<float>(args, share_at_),
                              .h = args.outputs[1].as<T>(),
                              .y = args.outputs[0].as<T>(),
                              .gates = args.outputs[2].as<T>()};
    const int64_t n = s_.states();
    AMPD_RETURN_IF_ERROR(inputs_.Run(args.inputs[0].data, args.inputs[1].data, WorkspaceAt<float>(args, projected_at_),
                                     WorkspaceAt<void>(args, products_at_)));
    AMPD_RETURN_IF_ERROR(launch_(recurrent::StartStates<T>, n, InputOrNull<T>(args, 6), n, v.h));
    for (int64_t step = 0; step < s_.time; ++step) {
      AMPD_RETURN_IF_ERROR(hidden_.apart ? ResetStep(args, s_.At(step), v) : Step(args, s_.At(step), v));
    }
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status Step(const KernelArgs& args, int64_t t, const StepTensors<T>& v) const {
    AMPD_RETURN_IF_ERROR(hidden_.all->Run(v.h, args.inputs[2].data, WorkspaceAt<float>(args, share_at_),
                                          WorkspaceAt<void>(args, products_at_)));
    return launch_(GruStep<T>, s_.states(), s_, t, v);
  }

  template <typename T>
  absl::Status ResetStep(const KernelArgs& args, int64_t t, const StepTensors<T>& v) const {
    const int64_t n = s_.hidden;
    float* share = WorkspaceAt<float>(args, share_at_);
    void* products = WorkspaceAt<void>(args, products_at_);
    const T* weights = args.inputs[2].as<T>();
    AMPD_RETURN_IF_ERROR(hidden_.gates->Run(v.h, weights, share, products));
    AMPD_RETURN_IF_ERROR(launch_(GruResetStep<T>, s_.states(), s_, t, v));
    AMPD_RETURN_IF_ERROR(hidden_.fresh->Run(v.gates + (4 * t + 3) * n, weights + 2 * n * n, share, products));
    return launch_(GruNewStep<T>, s_.states(), s_, t, v);
  }

  const Launcher launch_;
  const Sequence s_;
  const DType dtype_;
  const Product inputs_;
  const HiddenProducts hidden_;
  WorkspaceLayout layout_;
  int64_t products_at_ = 0, share_at_ = 0, projected_at_ = 0;
};

// Inputs of gru_grad.
enum GradInput { kDy, kDh, kWeights, kY, kGates, kLengths, kH0 };

template <typename T>
struct GradTensors {
  const int32_t* lengths;
  const T *dy, *dh_n, *gates, *before;  // before: the states that each step read, which another kernel gathers first
  StateGrads grads;
  float* through;                        // the gradient of r h, then its share of the state's
  T *dgates, *dhidden, *dfresh, *reset;  // the last two only where the reset stands first

  __device__ void Clear(int64_t row, int64_t n, int64_t j) const {
    for (int g = 0; g < 3; ++g) {
      const int64_t at = (3 * row + g) * n + j;
      dgates[at] = dhidden[at] = T{};
      if (dfresh != nullptr) dfresh[at] = T{};
    }
    if (reset != nullptr) reset[row * n + j] = T{};
  }
};

// Time t of every sample: gradients of z and n, and of r where the reset is behind the product. `later` is the time
// that was done before it, or none (-1).
template <typename T>
__global__ void __launch_bounds__(kThreads) GruStepGrad(Sequence s, int64_t t, int64_t later, GradTensors<T> v) {
  const int64_t n = s.hidden;
  ForEach(s.states(), [&](int64_t i) {
    const int64_t b = i / n, j = i % n, row = b * s.time + t, first = 3 * row * n + j;
    float dh = later < 0 ? Load(v.dh_n[i]) : v.grads.From(s, v.lengths, later, b, i);
    if (t >= s.LengthOf(v.lengths, b)) {
      v.grads.kept[i] = dh;
      return v.Clear(row, n, j);
    }
    dh += Load(v.dy[row * n + j]);
    const T* gates = v.gates + 4 * row * n + j;
    const float r = Load(gates[0]), z = Load(gates[n]), fresh = Load(gates[2 * n]);
    const float dz = dh * (Load(v.before[row * n + j]) - fresh) * (z * (1.0f - z));
    const float dfresh = dh * (1.0f - z) * (1.0f - fresh * fresh);
    v.grads.kept[i] = dh * z;
    v.dgates[first + n] = v.dhidden[first + n] = Store<T>(dz);
    v.dgates[first + 2 * n] = Store<T>(dfresh);
    if (v.dfresh != nullptr) {
      v.dhidden[first + 2 * n] = v.dfresh[first] = v.dfresh[first + n] = T{};
      v.dfresh[first + 2 * n] = Store<T>(dfresh);
      v.reset[row * n + j] = gates[3 * n];
      return;
    }
    v.dgates[first] = v.dhidden[first] = Store<T>(dfresh * Load(gates[3 * n]) * (r * (1.0f - r)));
    v.dhidden[first + 2 * n] = Store<T>(dfresh * r);
  });
}

// The gradient of r where the reset stands before the product, from that of r h.
template <typename T>
__global__ void __launch_bounds__(kThreads) GruResetGrad(Sequence s, int64_t t, GradTensors<T> v) {
  const int64_t n = s.hidden;
  ForEach(s.states(), [&](int64_t i) {
    const int64_t b = i / n, j = i % n, row = b * s.time + t;
    if (t >= s.LengthOf(v.lengths, b)) return;
    const float r = Load(v.gates[4 * row * n + j]), of_reset = v.through[i];
    const T dr = Store<T>(of_reset * Load(v.before[row * n + j]) * (r * (1.0f - r)));
    v.dgates[3 * row * n + j] = v.dhidden[3 * row * n + j] = dr;
    v.through[i] = of_reset * r;
  });
}

class GruGradKernel : public runtime::Kernel {
 public:
  static absl::StatusOr<std::unique_ptr<runtime::Kernel>> Create(Context* context, const NodeDesc& desc) {
    const Shape& dy = desc.inputs[kDy].shape;
    // The rows of a time step lie among those of the others.
    const int64_t n = dy[2], stride = dy[1] * 3 * n;
    HiddenProducts back{.apart = ResetFirst(desc)};
    if (back.apart) {
      AMPD_ASSIGN_OR_RETURN(back.gates, Product::Create(desc, {dy[0], n, 2 * n, stride, false}, context));
      AMPD_ASSIGN_OR_RETURN(back.fresh, Product::Create(desc, {dy[0], n, n, stride, false}, context));
    } else {
      AMPD_ASSIGN_OR_RETURN(back.all, Product::Create(desc, {dy[0], n, 3 * n, stride, false}, context));
    }
    return std::unique_ptr<runtime::Kernel>(new GruGradKernel(context, desc, std::move(back)));
  }

  int64_t workspace_bytes() const override { return layout_.bytes(); }

  absl::Status Launch(const KernelArgs& args) override {
    return VisitData(dtype_, [&](auto tag) { return LaunchAs<typename decltype(tag)::type>(args); });
  }

 private:
  GruGradKernel(Context* context, const NodeDesc& desc, HiddenProducts back)
      : launch_{context, desc.name},
        s_(recurrent::SequenceOf(desc, desc.inputs[kDy].shape, desc.inputs[kDy].shape[2])),
        dtype_(desc.inputs[kDy].dtype),
        back_(std::move(back)) {
    kept_at_ = layout_.Add(s_.states() * 4);
    back_at_ = layout_.Add(s_.states() * 4);
    if (back_.apart) through_at_ = layout_.Add(s_.states() * 4);
    products_at_ = layout_.Add(back_.workspace_bytes());
  }

  template <typename T>
  GradTensors<T> TensorsOf(const KernelArgs& args) const {
    const auto out = [&](size_t i) { return back_.apart || i < 4 ? args.outputs[i].as<T>() : nullptr; };
    float* through = back_.apart ? WorkspaceAt<float>(args, through_at_) : nullptr;
    return {.lengths = InputOrNull<int32_t>(args, kLengths),
            .dy = args.inputs[kDy].as<T>(),
            .dh_n = args.inputs[kDh].as<T>(),
            .gates = args.inputs[kGates].as<T>(),
            .before = out(2),
            .grads = {WorkspaceAt<float>(args, kept_at_), WorkspaceAt<float>(args, back_at_), through},
            .through = through,
            .dgates = out(0),
            .dhidden = out(1),
            .dfresh = out(4),
            .reset = out(5)};
  }

  template <typename T>
  absl::Status LaunchAs(const KernelArgs& args) const {
    const GradTensors<T> v = TensorsOf<T>(args);
    const int64_t n = s_.states();
    AMPD_RETURN_IF_ERROR(launch_(recurrent::StatesBefore<T>, n * s_.time, s_, v.lengths, args.inputs[kY].as<T>(),
                                 InputOrNull<T>(args, kH0), args.outputs[2].as<T>()));
    int64_t later = -1;
    for (int64_t step = s_.time; step-- > 0; later = s_.At(step)) {
      AMPD_RETURN_IF_ERROR(launch_(GruStepGrad<T>, n, s_, s_.At(step), later, v));
      AMPD_RETURN_IF_ERROR(Back(args, s_.At(step), v));
    }
    return launch_(recurrent::FinishStates<T>, n, s_, v.lengths, v.grads, later, args.outputs[3].as<T>());
  }

  // The products of time t.
  template <typename T>
  absl::Status Back(const KernelArgs& args, int64_t t, const GradTensors<T>& v) const {
    const int64_t n = s_.hidden, at = 3 * t * n;
    const T* weights = args.inputs[kWeights].as<T>();
    void* products = WorkspaceAt<void>(args, products_at_);
    if (!back_.apart) return back_.all->Run(v.dhidden + at, weights, v.grads.back, products);
    AMPD_RETURN_IF_ERROR(back_.fresh->Run(v.dfresh + at + 2 * n, weights + 2 * n * n, v.through, products));
    AMPD_RETURN_IF_ERROR(launch_(GruResetGrad<T>, s_.states(), s_, t, v));
    return back_.gates->Run(v.dhidden + at, weights, v.grads.back, products);
  }

  const Launcher launch_;
  const Sequence s_;
  const DType dtype_;
  const HiddenProducts back_;
  WorkspaceLayout layout_;
  int64_t products_at_ = 0, kept_at_ = 0, back_at_ = 0, through_at_ = 0;
};

}  // namespace

void RegisterGru(runtime::KernelTable* table, Context* context) {
  constexpr DType f = DType::kF32, i = DType::kI32;
  const auto forward = [context](const NodeDesc& desc) { return GruKernel::Create(context, desc); };
  const auto gradient = [context](const NodeDesc& desc) { return GruGradKernel::Create(context, desc); };
  for (DType t : kDataTypes) {
    const std::vector<DType> all = {t, t, t, f, f, i, t}, grads = {t, t, t, t, t, i, t};
    for (int n : {3, 5, 6, 7}) {
      table->Add(ir::OpKind::kGru, {all.begin(), all.begin() + n}, {t, t, t}, forward);
    }
    for (int n : {5, 6, 7}) {
      for (int outputs : {4, 6}) {
        table->Add(ir::OpKind::kGruGrad, {grads.begin(), grads.begin() + n}, std::vector<DType>(outputs, t), gradient);
      }
    }
  }
}

}  // namespace ampd::cuda
