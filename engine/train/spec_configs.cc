#include "engine/train/spec_configs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/core/status.h"
#include "engine/train/sha256.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace ampd::train {
namespace {

// A beta that rounds to 1 in fp32 would make its bias correction infinite.
float BetaOf(double beta) { return std::min(static_cast<float>(beta), std::nextafter(1.0f, 0.0f)); }

template <typename Adam>
optim::OptimizerConfig AdamConfig(optim::OptimizerKind kind, const Adam& adam) {
  optim::OptimizerConfig config;
  config.kind = kind;
  config.beta1 = BetaOf(adam.beta1());
  config.beta2 = BetaOf(adam.beta2());
  config.epsilon = static_cast<float>(adam.epsilon());
  config.weight_decay = static_cast<float>(adam.weight_decay());
  return config;
}

double BaseRate(const v1::OptimizerSpec& spec) {
  if (spec.has_sgd()) return spec.sgd().learning_rate();
  return spec.has_adam() ? spec.adam().learning_rate() : spec.adamw().learning_rate();
}

optim::OnFloor OnFloorOf(v1::LossScaleSpec::OnFloor on_floor) {
  switch (on_floor) {
    case v1::LossScaleSpec::HOLD:
      return optim::OnFloor::kHold;
    case v1::LossScaleSpec::FALLBACK_BF16:
      return optim::OnFloor::kFallbackBf16;
    case v1::LossScaleSpec::ROLLBACK:
      return optim::OnFloor::kRollback;
    default:
      return optim::OnFloor::kFail;
  }
}

std::string DeterministicBytes(const google::protobuf::Message& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream out(&stream);
    out.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&out);
  }
  return bytes;
}

}  // namespace

DType MasterDType(const ResolvedJobSpec& spec) {
  const v1::PrecisionSpec& precision = spec.proto().precision();
  if (precision.master_weights()) return DType::kF32;
  if (precision.mode() == v1::PrecisionSpec::FP16) return DType::kF16;
  return precision.mode() == v1::PrecisionSpec::BF16 ? DType::kBF16 : DType::kF32;
}

optim::OptimizerConfig OptimizerConfigOf(const ResolvedJobSpec& spec) {
  const v1::OptimizerSpec& optimizer = spec.proto().optimizer();
  if (optimizer.has_adam()) return AdamConfig(optim::OptimizerKind::kAdam, optimizer.adam());
  if (optimizer.has_adamw()) return AdamConfig(optim::OptimizerKind::kAdamW, optimizer.adamw());
  optim::OptimizerConfig config;
  config.kind = optim::OptimizerKind::kSgd;
  config.momentum = static_cast<float>(optimizer.sgd().momentum());
  config.nesterov = optimizer.sgd().nesterov();
  config.weight_decay = static_cast<float>(optimizer.sgd().weight_decay());
  return config;
}

optim::LossScaleConfig LossScaleConfigOf(const ResolvedJobSpec& spec) {
  const v1::LossScaleSpec& scale = spec.proto().precision().loss_scale();
  optim::LossScaleConfig config;
  if (scale.kind() == v1::LossScaleSpec::NONE) return config;
  config.kind =
      scale.kind() == v1::LossScaleSpec::STATIC ? optim::LossScaleKind::kStatic : optim::LossScaleKind::kDynamic;
  config.init = scale.init();
  if (config.kind == optim::LossScaleKind::kStatic) return config;
  config.growth_factor = scale.growth_factor();
  config.backoff_factor = scale.backoff_factor();
  config.growth_interval = scale.growth_interval();
  config.min = scale.min();
  config.max = scale.max();
  config.hysteresis = scale.hysteresis();
  if (scale.hysteresis_refill() == v1::LossScaleSpec::ON_GROWTH) {
    config.hysteresis_refill = optim::HysteresisRefill::kOnGrowth;
  }
  config.on_floor = OnFloorOf(scale.on_floor());
  if (scale.has_max_rollbacks()) config.max_rollbacks = scale.max_rollbacks();
  return config;
}

absl::StatusOr<ResolvedJobSpec> WithMode(const ResolvedJobSpec& spec, v1::PrecisionSpec::Mode mode) {
  v1::JobSpec changed = spec.proto();
  v1::PrecisionSpec* precision = changed.mutable_precision();
  for (v1::PrecisionRule& rule : *precision->mutable_rules()) {
    if (rule.dtype() == precision->mode()) rule.set_dtype(mode);
  }
  precision->set_mode(mode);
  precision->clear_loss_scale();
  precision->mutable_loss_scale()->set_kind(v1::LossScaleSpec::NONE);
  AMPD_ASSIGN_OR_RETURN(ResolvedJobSpec resolved, ResolveJobSpec(std::move(changed)));
  return resolved;
}

optim::ScheduleConfig ScheduleConfigOf(const ResolvedJobSpec& spec, int64_t total_steps) {
  const v1::ScheduleSpec& schedule = spec.proto().optimizer().schedule();
  optim::ScheduleConfig config;
  config.learning_rate = BaseRate(spec.proto().optimizer());
  config.total_steps = total_steps;
  if (schedule.has_step()) {
    config.kind = optim::ScheduleKind::kStep;
    config.every_steps = schedule.step().every_steps();
    config.gamma = schedule.step().gamma();
    config.warmup_steps = schedule.step().warmup_steps();
  } else if (schedule.has_cosine()) {
    config.kind = optim::ScheduleKind::kCosine;
    config.min_ratio = schedule.cosine().min_ratio();
    config.warmup_steps = schedule.cosine().warmup_steps();
  } else if (schedule.has_linear()) {
    config.kind = optim::ScheduleKind::kLinear;
    config.min_ratio = schedule.linear().min_ratio();
    config.warmup_steps = schedule.linear().warmup_steps();
  } else {
    config.warmup_steps = schedule.constant().warmup_steps();
  }
  return config;
}

std::string SpecHash(const ResolvedJobSpec& spec) {
  v1::JobSpec parts;
  parts.set_seed(spec.proto().seed());
  *parts.mutable_model() = spec.proto().model();
  *parts.mutable_data() = spec.proto().data();
  *parts.mutable_precision() = spec.proto().precision();
  *parts.mutable_optimizer() = spec.proto().optimizer();
  *parts.mutable_train() = spec.proto().train();
  return Sha256Hex(DeterministicBytes(parts));
}

}  // namespace ampd::train
