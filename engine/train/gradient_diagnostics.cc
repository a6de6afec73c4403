#include "engine/train/gradient_diagnostics.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/core/half.h"
#include "engine/core/status.h"
#include "engine/ops/op_def.h"
#include "engine/passes/widen_gradients.h"
#include "engine/train/spec_configs.h"
#include "engine/train/training_tensors.h"

namespace ampd::train {
namespace {

// Rounding to nearest, ties to even: up to half the smallest subnormal becomes 0, from half a unit beyond 65504 on
// infinite.
constexpr double kFlushed = 0x1p-25;
constexpr double kInfinite = 65520;

// The spec in another mode, without an optimizer's moments. In FP32 every layer is, whatever rules say.
absl::StatusOr<ResolvedJobSpec> SpecIn(const ResolvedJobSpec& spec, v1::PrecisionSpec::Mode mode) {
  v1::JobSpec bare = spec.proto();
  bare.clear_optimizer();
  bare.mutable_optimizer()->mutable_sgd();
  bare.mutable_report()->clear_samples();
  for (v1::PhaseSpec& phase : *bare.mutable_phases()) phase.clear_optimizer();
  if (mode == v1::PrecisionSpec::FP32) bare.mutable_precision()->clear_rules();
  AMPD_ASSIGN_OR_RETURN(const ResolvedJobSpec resolved, ResolveJobSpec(std::move(bare)));
  return WithMode(resolved, mode);
}

// The value whose memory a view shows: steps write those.
ir::ValueId RootOf(const ir::Graph& graph, ir::ValueId v) {
  while (graph.values[v].producer >= 0 && ops::GetOpDef(graph.nodes[graph.values[v].producer].op).is_view) {
    v = graph.nodes[graph.values[v].producer].inputs[0];
  }
  return v;
}

// Values of the backward pass that `graph`, in FP16, writes in fp16 or casts to it; true: added to a parameter's
// gradient.
std::map<std::string, bool> HeldInHalf(const ir::Graph& graph) {
  std::map<std::string, bool> held;
  for (const ir::Node& node : graph.nodes) {
    if (node.stage != ir::Stage::kGradient) continue;
    const bool to_half = node.op == ir::OpKind::kCast && graph.type(node.outputs[0]).dtype == DType::kF16;
    for (ir::ValueId v : to_half ? node.inputs : node.outputs) {
      v = RootOf(graph, v);
      if (to_half || graph.type(v).dtype == DType::kF16) held[graph.values[v].name] = false;
    }
  }
  for (const ir::Node& node : graph.nodes) {
    if (node.op != ir::OpKind::kAccumulateGrad) continue;
    const auto it = held.find(graph.values[RootOf(graph, node.inputs[0])].name);
    if (it != held.end()) it->second = true;
  }
  return held;
}

// floor(log2(|v|)) of a finite v that is not 0.
int ExponentOf(float v) {
  const uint32_t bits = FloatBits(v) & 0x7fffffffu;
  return bits >= 0x00800000u ? static_cast<int>(bits >> 23) - 127 : std::ilogb(v);
}

double LargestSafeScale(float max_magnitude) {
  if (max_magnitude == 0) return 0x1p126;
  const double max = static_cast<double>(max_magnitude);
  int exponent = std::ilogb(kInfinite / max);
  // The quotient is rounded: its exponent may be one off.
  while (std::ldexp(max, exponent) >= kInfinite) --exponent;
  while (std::ldexp(max, exponent + 1) < kInfinite) ++exponent;
  return std::ldexp(1.0, std::clamp(exponent, -126, 126));
}

double Share(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

void Fp16Figures::Add(absl::Span<const float> values) {
  for (const float value : values) {
    if (!std::isfinite(value)) {
      ++non_finite_;
      continue;
    }
    if (value == 0) {
      ++zeros_;
      continue;
    }
    const float magnitude = std::fabs(value);
    const double scaled = static_cast<double>(magnitude) * scale_;
    ++counts_[static_cast<size_t>(ExponentOf(value) - kFirstExponent)];
    flushed_unscaled_ += static_cast<double>(magnitude) <= kFlushed ? 1 : 0;
    flushed_scaled_ += scaled <= kFlushed ? 1 : 0;
    overflowed_scaled_ += scaled >= kInfinite ? 1 : 0;
    max_magnitude_ = std::max(max_magnitude_, magnitude);
  }
}

v1::TensorDiagnostics Fp16Figures::Result() const {
  v1::TensorDiagnostics result;
  int64_t nonzero = 0;
  int last = kExponents;
  while (last > 0 && counts_[static_cast<size_t>(last - 1)] == 0) --last;
  for (int e = 0; e < last; ++e) {
    const int64_t count = counts_[static_cast<size_t>(e)];
    nonzero += count;
    if (result.exponent_counts().empty() && count > 0) result.set_first_exponent(e + kFirstExponent);
    if (nonzero > 0) result.add_exponent_counts(count);
  }
  result.set_nonzero(nonzero);
  result.set_zeros(zeros_);
  result.set_non_finite(non_finite_);
  result.set_flushed_unscaled(Share(flushed_unscaled_, nonzero));
  result.set_flushed_scaled(Share(flushed_scaled_, nonzero));
  result.set_overflowed_scaled(Share(overflowed_scaled_, nonzero));
  result.set_max_magnitude(static_cast<double>(max_magnitude_));
  result.set_largest_safe_scale(non_finite_ > 0 ? 0 : LargestSafeScale(max_magnitude_));
  return result;
}

absl::StatusOr<std::unique_ptr<PlannedModel>> GradientDiagnostics::Plan(const ResolvedJobSpec& spec,
                                                                        const models::SampleInfo& sample,
                                                                        std::unique_ptr<runtime::Backend> backend,
                                                                        int threads) {
  AMPD_ASSIGN_OR_RETURN(const ResolvedJobSpec fp32, SpecIn(spec, v1::PrecisionSpec::FP32));
  return PlanModel(fp32, sample, std::move(backend), threads, Fusion::kNone);
}

absl::StatusOr<std::unique_ptr<GradientDiagnostics>> GradientDiagnostics::Create(
    const ResolvedJobSpec& spec, const models::SampleInfo& sample, std::unique_ptr<runtime::Backend> backend,
    int threads) {
  AMPD_ASSIGN_OR_RETURN(const ResolvedJobSpec fp16, SpecIn(spec, v1::PrecisionSpec::FP16));
  const int64_t micro_batch = spec.proto().train().micro_batch_size();
  AMPD_ASSIGN_OR_RETURN(models::Model half, models::BuildModel(fp16, sample, micro_batch, micro_batch));
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<PlannedModel> plan, Plan(spec, sample, std::move(backend), threads));
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<LoadedModel> model, LoadedModel::Create(*plan));
  auto diagnostics =
      std::unique_ptr<GradientDiagnostics>(new GradientDiagnostics(spec, std::move(plan), std::move(model)));
  for (models::PhaseGraph& phase : half.phases) {
    AMPD_ASSIGN_OR_RETURN(phase.train, passes::WidenGradients(std::move(phase.train)));
    diagnostics->watched_.push_back(HeldInHalf(phase.train));
  }
  return diagnostics;
}

GradientDiagnostics::GradientDiagnostics(const ResolvedJobSpec& spec, std::unique_ptr<PlannedModel> plan,
                                         std::unique_ptr<LoadedModel> model)
    : plan_(std::move(plan)), model_(std::move(model)) {
  const v1::TrainSpec& train = spec.proto().train();
  for (int i = 0; i < spec.proto().phases_size(); ++i) {
    micro_batches_.emplace_back(plan_.get(), model_.get(), train.batch_size(), train.micro_batch_size(), i);
  }
}

absl::Status GradientDiagnostics::Look(const std::map<std::string, bool>& watched_names, const runtime::PlanStep& step,
                                       absl::Span<const TensorView> outputs, float scale,
                                       std::vector<std::pair<std::string, Tensor>>* tensors) {
  if (step.stage != ir::Stage::kGradient || step.op == ir::OpKind::kAccumulateGrad) return absl::OkStatus();
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string& name = step.outputs[i].name;
    const auto watched = watched_names.find(name);
    if (watched == watched_names.end() || outputs[i].dtype != DType::kF32) continue;
    auto it = std::find_if(tensors->begin(), tensors->end(), [&](const auto& t) { return t.first == name; });
    if (it == tensors->end()) {
      it = tensors->insert(tensors->end(), {name, Tensor{step.layer, watched->second, Fp16Figures(scale)}});
    }
    AMPD_ASSIGN_OR_RETURN(const TensorView values, runtime::OnHost(model_->memory.memory(), outputs[i], &staging_));
    it->second.figures.Add({values.as<float>(), static_cast<size_t>(values.size())});
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::GradientDiagnostics> GradientDiagnostics::Run(const data::Batch& batch,
                                                                 const runtime::StepState& state, float scale,
                                                                 runtime::ModelMemory* memory, size_t phase) {
  AMPD_RETURN_IF_ERROR(CopyModel(memory, &model_->memory));
  AMPD_RETURN_IF_ERROR(model_->memory.PublishAll());
  std::vector<std::pair<std::string, Tensor>> tensors;
  AMPD_RETURN_IF_ERROR(micro_batches_[phase]
                           .Run(batch, state, 1.0f,
                                [&](const runtime::PlanStep& step, absl::Span<const TensorView> outputs) {
                                  return Look(watched_[phase], step, outputs, scale, &tensors);
                                })
                           .status());
  v1::GradientDiagnostics message;
  message.set_scale(static_cast<double>(scale));
  message.set_largest_safe_scale(0x1p126);
  for (const auto& [name, tensor] : tensors) {
    v1::TensorDiagnostics* result = message.add_tensors();
    *result = tensor.figures.Result();
    result->set_tensor(name);
    result->set_layer(tensor.layer);
    result->set_of_parameter(tensor.of_parameter);
    message.set_largest_safe_scale(std::min(message.largest_safe_scale(), result->largest_safe_scale()));
  }
  return message;
}

}  // namespace ampd::train
