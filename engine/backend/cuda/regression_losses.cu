// Losses of a prediction against a target, averaged over all axes but the first. In double, as on the CPU: they are
// small beside the networks that they judge.
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/rows.h"
#include "engine/backend/cuda/strided_index.h"
#include "engine/core/status.h"
#include "engine/ops/loss_elements.h"

namespace ampd::cuda {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

constexpr int kThreads = 256;

// Samples of `features` elements.
struct Samples {
  int64_t samples, features;
  double number;                  // beta or margin
  StridedIndex sample_of, place;  // an element's sample, and its place on the last axis
  const float *prediction = nullptr, *target = nullptr, *weights = nullptr;

  static absl::StatusOr<Samples> Of(const NodeDesc& desc, const Shape& shape) {
    Samples s{.samples = shape[0],
              .features = NumElements(shape) / shape[0],
              .number = desc.attributes.Double("beta", desc.attributes.Double("margin", 1))};
    const int64_t size = NumElements(shape), last = shape.back();
    AMPD_ASSIGN_OR_RETURN(s.sample_of, MakeStridedIndex(desc.name, {{s.samples, s.features}, {1, 0}, 0}));
    AMPD_ASSIGN_OR_RETURN(s.place, MakeStridedIndex(desc.name, {{size / last, last}, {0, 1}, 0}));
    return s;
  }

  // `first` is the prediction's place among the inputs.
  Samples With(const KernelArgs& args, size_t first) const {
    Samples s = *this;
    s.prediction = args.inputs[first].as<float>();
    s.target = args.inputs[first + 1].as<float>();
    if (args.inputs.size() > first + 2) s.weights = args.inputs[first + 2].as<float>();
    return s;
  }
  __device__ __forceinline__ ops::LossElement At(int64_t i) const {
    const double positive = weights != nullptr ? static_cast<double>(weights[place.At(i)]) : 1.0;
    return {static_cast<double>(prediction[i]), static_cast<double>(target[i]), number, positive};
  }
};

template <ops::LossFunction kElement, typename Team>
__global__ void __launch_bounds__(Team::kMostThreads) Losses(Team, Samples s, float* __restrict__ losses) {
  for (int64_t row = Team::First(); row < s.samples; row += Team::Step()) {
    double sum = 0;
    Team::ForEach(s.features, [&](int, int64_t column) { sum += kElement(s.At(row * s.features + column)); });
    sum = Team::Sum(sum);
    if (Team::rank() == 0) losses[row] = static_cast<float>(sum / static_cast<double>(s.features));
  }
}

template <ops::LossFunction kElement>
__global__ void __launch_bounds__(kThreads)
    LossesGrad(Samples s, const float* __restrict__ dlosses, float* __restrict__ dprediction) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < s.samples * s.features; i += stride) {
    const double share = static_cast<double>(dlosses[s.sample_of.At(i)]) / static_cast<double>(s.features);
    dprediction[i] = static_cast<float>(share * kElement(s.At(i)));
  }
}

template <ops::LossFunction kElement>
runtime::PrepareKernel Forward(Context* context) {
  return [=](const NodeDesc& desc) -> absl::StatusOr<std::unique_ptr<runtime::Kernel>> {
    AMPD_ASSIGN_OR_RETURN(const Samples samples, Samples::Of(desc, desc.inputs[0].shape));
    const RowPlan plan = PlanRows(samples.samples, samples.features, 1);
    return MakeKernel(0, [=, name = desc.name](const KernelArgs& args) {
      return VisitOnePass<1>(plan, [&](auto team) {
        return Launch(name, Losses<kElement, decltype(team)>, plan.blocks, plan.threads, 0, context->stream(), team,
                      samples.With(args, 0), args.outputs[0].as<float>());
      });
    });
  };
}

template <ops::LossFunction kElement>
runtime::PrepareKernel Backward(Context* context) {
  return [=](const NodeDesc& desc) -> absl::StatusOr<std::unique_ptr<runtime::Kernel>> {
    AMPD_ASSIGN_OR_RETURN(const Samples samples, Samples::Of(desc, desc.inputs[1].shape));
    const unsigned blocks = BlocksFor(samples.samples * samples.features, kThreads, context->properties().sm_count);
    return MakeKernel(0, [=, name = desc.name](const KernelArgs& args) {
      return Launch(name, LossesGrad<kElement>, blocks, kThreads, 0, context->stream(), samples.With(args, 1),
                    args.inputs[0].as<float>(), args.outputs[0].as<float>());
    });
  };
}

}  // namespace

void RegisterRegressionLosses(runtime::KernelTable* table, Context* context) {
  constexpr DType f = DType::kF32;
  using ir::OpKind;
  table->Add(OpKind::kSquaredError, {f, f}, {f}, Forward<ops::SquaredError>(context));
  table->Add(OpKind::kSquaredErrorGrad, {f, f, f}, {f}, Backward<ops::SquaredErrorGrad>(context));
  table->Add(OpKind::kL1Loss, {f, f}, {f}, Forward<ops::L1Loss>(context));
  table->Add(OpKind::kL1LossGrad, {f, f, f}, {f}, Backward<ops::L1LossGrad>(context));
  table->Add(OpKind::kSmoothL1Loss, {f, f}, {f}, Forward<ops::SmoothL1Loss>(context));
  table->Add(OpKind::kSmoothL1LossGrad, {f, f, f}, {f}, Backward<ops::SmoothL1LossGrad>(context));
  table->Add(OpKind::kHingeLoss, {f, f}, {f}, Forward<ops::HingeLoss>(context));
  table->Add(OpKind::kHingeLossGrad, {f, f, f}, {f}, Backward<ops::HingeLossGrad>(context));
  table->Add(OpKind::kSigmoidCrossEntropy, {f, f}, {f}, Forward<ops::SigmoidCrossEntropy>(context));
  table->Add(OpKind::kSigmoidCrossEntropy, {f, f, f}, {f}, Forward<ops::SigmoidCrossEntropy>(context));
  table->Add(OpKind::kSigmoidCrossEntropyGrad, {f, f, f}, {f}, Backward<ops::SigmoidCrossEntropyGrad>(context));
  table->Add(OpKind::kSigmoidCrossEntropyGrad, {f, f, f, f}, {f}, Backward<ops::SigmoidCrossEntropyGrad>(context));
}

}  // namespace ampd::cuda
