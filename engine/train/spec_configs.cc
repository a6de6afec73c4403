#include "engine/train/spec_configs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/train/sha256.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/util/json_util.h"
#include "proto/spec/text.h"

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

optim::OptimizerConfig SgdConfig(const v1::SgdOptimizer& sgd) {
  optim::OptimizerConfig config;
  config.kind = optim::OptimizerKind::kSgd;
  config.momentum = static_cast<float>(sgd.momentum());
  config.dampening = static_cast<float>(sgd.dampening());
  config.nesterov = sgd.nesterov();
  config.weight_decay = static_cast<float>(sgd.weight_decay());
  return config;
}

optim::OptimizerConfig RmsPropConfig(const v1::RmsPropOptimizer& rmsprop) {
  optim::OptimizerConfig config;
  config.kind = optim::OptimizerKind::kRmsProp;
  config.smoothing = rmsprop.smoothing();
  config.epsilon = static_cast<float>(rmsprop.epsilon());
  config.momentum = static_cast<float>(rmsprop.momentum());
  config.centered = rmsprop.centered();
  config.weight_decay = static_cast<float>(rmsprop.weight_decay());
  return config;
}

optim::OptimizerConfig AdagradConfig(const v1::AdagradOptimizer& adagrad) {
  optim::OptimizerConfig config;
  config.kind = optim::OptimizerKind::kAdagrad;
  config.rate_decay = adagrad.learning_rate_decay();
  config.initial_accumulator = static_cast<float>(adagrad.initial_accumulator());
  config.epsilon = static_cast<float>(adagrad.epsilon());
  config.weight_decay = static_cast<float>(adagrad.weight_decay());
  return config;
}

optim::OptimizerConfig KindConfig(const v1::OptimizerSpec& spec) {
  switch (spec.kind_case()) {
    case v1::OptimizerSpec::kSgd:
      return SgdConfig(spec.sgd());
    case v1::OptimizerSpec::kAdam:
      return AdamConfig(optim::OptimizerKind::kAdam, spec.adam());
    case v1::OptimizerSpec::kRmsprop:
      return RmsPropConfig(spec.rmsprop());
    case v1::OptimizerSpec::kAdagrad:
      return AdagradConfig(spec.adagrad());
    case v1::OptimizerSpec::kLamb:
      return AdamConfig(optim::OptimizerKind::kLamb, spec.lamb());
    case v1::OptimizerSpec::kAdamw:
    case v1::OptimizerSpec::KIND_NOT_SET:
      break;
  }
  return AdamConfig(optim::OptimizerKind::kAdamW, spec.adamw());
}

double BaseRate(const v1::OptimizerSpec& spec) {
  switch (spec.kind_case()) {
    case v1::OptimizerSpec::kSgd:
      return spec.sgd().learning_rate();
    case v1::OptimizerSpec::kAdam:
      return spec.adam().learning_rate();
    case v1::OptimizerSpec::kRmsprop:
      return spec.rmsprop().learning_rate();
    case v1::OptimizerSpec::kAdagrad:
      return spec.adagrad().learning_rate();
    case v1::OptimizerSpec::kLamb:
      return spec.lamb().learning_rate();
    case v1::OptimizerSpec::kAdamw:
    case v1::OptimizerSpec::KIND_NOT_SET:
      break;
  }
  return spec.adamw().learning_rate();
}

void FillOneCycle(const v1::OneCycleSchedule& cycle, optim::ScheduleConfig* config) {
  config->kind = optim::ScheduleKind::kOneCycle;
  config->rising_share = cycle.rising_share();
  config->start_divisor = cycle.start_divisor();
  config->end_divisor = cycle.end_divisor();
  config->three_phase = cycle.three_phase();
  config->straight = cycle.shape() == v1::OneCycleSchedule::LINEAR;
}

void FillRestarts(const v1::CosineRestartsSchedule& restarts, optim::ScheduleConfig* config) {
  config->kind = optim::ScheduleKind::kCosineRestarts;
  config->period = restarts.period_steps();
  config->period_factor = restarts.period_factor();
  config->min_ratio = restarts.min_ratio();
  config->warmup_steps = restarts.warmup_steps();
}

// Cosine, linear and polynomial have the same fields.
template <typename Schedule>
void FillFall(optim::ScheduleKind kind, const Schedule& schedule, optim::ScheduleConfig* config) {
  config->kind = kind;
  config->min_ratio = schedule.min_ratio();
  config->warmup_steps = schedule.warmup_steps();
}

void FillSchedule(const v1::ScheduleSpec& schedule, optim::ScheduleConfig* config) {
  switch (schedule.kind_case()) {
    case v1::ScheduleSpec::kConstant:
    case v1::ScheduleSpec::KIND_NOT_SET:
      config->warmup_steps = schedule.constant().warmup_steps();
      return;
    case v1::ScheduleSpec::kStep:
      config->kind = optim::ScheduleKind::kStep;
      config->every_steps = schedule.step().every_steps();
      config->gamma = schedule.step().gamma();
      config->warmup_steps = schedule.step().warmup_steps();
      return;
    case v1::ScheduleSpec::kMultiStep:
      config->kind = optim::ScheduleKind::kMultiStep;
      config->milestones = {schedule.multi_step().milestones().begin(), schedule.multi_step().milestones().end()};
      config->gamma = schedule.multi_step().gamma();
      config->warmup_steps = schedule.multi_step().warmup_steps();
      return;
    case v1::ScheduleSpec::kCosine:
      return FillFall(optim::ScheduleKind::kCosine, schedule.cosine(), config);
    case v1::ScheduleSpec::kLinear:
      return FillFall(optim::ScheduleKind::kLinear, schedule.linear(), config);
    case v1::ScheduleSpec::kPolynomial:
      config->power = schedule.polynomial().power();
      return FillFall(optim::ScheduleKind::kPolynomial, schedule.polynomial(), config);
    case v1::ScheduleSpec::kCosineRestarts:
      return FillRestarts(schedule.cosine_restarts(), config);
    case v1::ScheduleSpec::kOneCycle:
      return FillOneCycle(schedule.one_cycle(), config);
    case v1::ScheduleSpec::kInverseSquareRoot:
      config->kind = optim::ScheduleKind::kInverseSquareRoot;
      config->warmup_steps = schedule.inverse_square_root().warmup_steps();
      return;
  }
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

// As ResolveJobSpec() refuses the others.
bool IsAllowed(v1::PrecisionSpec::Mode mode, v1::PrecisionSpec::Mode rule) {
  switch (rule) {
    case v1::PrecisionSpec::FP32:
      return true;
    case v1::PrecisionSpec::TF32:
      return mode != v1::PrecisionSpec::FP32;
    case v1::PrecisionSpec::BF16:
      return mode == v1::PrecisionSpec::BF16 || mode == v1::PrecisionSpec::FP16 || mode == v1::PrecisionSpec::FP8;
    default:
      return rule == mode;
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
  const bool bf16 = precision.mode() == v1::PrecisionSpec::BF16 || precision.mode() == v1::PrecisionSpec::FP8;
  return bf16 ? DType::kBF16 : DType::kF32;
}

optim::OptimizerConfig OptimizerConfigOf(const ResolvedJobSpec& spec) {
  const v1::OptimizerSpec& optimizer = spec.proto().optimizer();
  optim::OptimizerConfig config = KindConfig(optimizer);
  if (optimizer.has_clip_value()) config.clip_value = static_cast<float>(optimizer.clip_value());
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

void ChangeMode(v1::PrecisionSpec::Mode mode, v1::PrecisionSpec* precision) {
  google::protobuf::RepeatedPtrField<v1::PrecisionRule> rules;
  for (v1::PrecisionRule rule : precision->rules()) {
    if (rule.dtype() == precision->mode()) rule.set_dtype(mode);
    if (IsAllowed(mode, rule.dtype())) *rules.Add() = std::move(rule);
  }
  precision->mutable_rules()->Swap(&rules);
  precision->set_mode(mode);
}

absl::StatusOr<ResolvedJobSpec> WithMode(const ResolvedJobSpec& spec, v1::PrecisionSpec::Mode mode) {
  v1::JobSpec changed = spec.proto();
  v1::PrecisionSpec* precision = changed.mutable_precision();
  ChangeMode(mode, precision);
  precision->clear_loss_scale();
  precision->mutable_loss_scale()->set_kind(v1::LossScaleSpec::NONE);
  AMPD_ASSIGN_OR_RETURN(ResolvedJobSpec resolved, ResolveJobSpec(std::move(changed)));
  return resolved;
}

absl::StatusOr<ResolvedJobSpec> PhaseSpecOf(const ResolvedJobSpec& spec, int phase) {
  const v1::PhaseSpec& of = spec.proto().phases(phase);
  if (!of.has_optimizer()) return spec;
  v1::JobSpec changed = spec.proto();
  *changed.mutable_optimizer() = of.optimizer();
  if (spec.proto().optimizer().has_ema()) *changed.mutable_optimizer()->mutable_ema() = spec.proto().optimizer().ema();
  AMPD_ASSIGN_OR_RETURN(ResolvedJobSpec resolved, ResolveJobSpec(std::move(changed)));
  return resolved;
}

std::string OptimizerField(const ResolvedJobSpec& spec, int phase) {
  return spec.proto().phases(phase).has_optimizer() ? absl::StrCat("phases[", phase, "].optimizer") : "optimizer";
}

int64_t TotalSteps(const v1::TrainSpec& train, int64_t samples) {
  return train.has_steps() ? train.steps() : train.epochs() * (samples / train.batch_size());
}

optim::ScheduleConfig ScheduleConfigOf(const ResolvedJobSpec& spec, int64_t total_steps) {
  optim::ScheduleConfig config;
  config.learning_rate = BaseRate(spec.proto().optimizer());
  config.total_steps = total_steps;
  FillSchedule(spec.proto().optimizer().schedule(), &config);
  return config;
}

// What looks on and changes no training, of the fields of what is hashed.
void ClearOnlookers(v1::JobSpec* parts) {
  // Where samples lie changes no result.
  parts->mutable_data()->clear_device_cache();
  // It asks for report.samples, which is not hashed.
  if (parts->optimizer().has_ema()) parts->mutable_optimizer()->mutable_ema()->clear_samples();
}

v1::JobSpec HashedParts(const ResolvedJobSpec& spec) {
  v1::JobSpec parts;
  parts.set_seed(spec.proto().seed());
  *parts.mutable_model() = spec.proto().model();
  *parts.mutable_data() = spec.proto().data();
  *parts.mutable_precision() = spec.proto().precision();
  *parts.mutable_optimizer() = spec.proto().optimizer();
  *parts.mutable_train() = spec.proto().train();
  // The phase of a plain job says nothing.
  if (spec.proto().phases_size() > 1 || spec.proto().model().networks_size() > 0) {
    *parts.mutable_phases() = spec.proto().phases();
  }
  ClearOnlookers(&parts);
  return parts;
}

std::string SpecHash(const ResolvedJobSpec& spec) {
  // As a checkpoint gives it back: JSON's -0 is read as 0.
  v1::JobSpec read;
  const bool same = google::protobuf::util::JsonStringToMessage(HashedSpec(spec), &read).ok();
  return Sha256Hex(DeterministicBytes(same ? read : HashedParts(spec)));
}

std::string HashedSpec(const ResolvedJobSpec& spec) { return ToJson(HashedParts(spec), JsonStyle::kCompact); }

absl::StatusOr<ResolvedJobSpec> ReadHashedSpec(const std::string& json) {
  v1::JobSpec parts;
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, &parts);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("its spec cannot be read: ", std::string(parsed.message())));
  }
  // Builds before wrote them too.
  ClearOnlookers(&parts);
  return ResolveJobSpec(std::move(parts));
}

absl::StatusOr<std::string> HashOfHashedSpec(const std::string& json) {
  AMPD_ASSIGN_OR_RETURN(const ResolvedJobSpec resolved, ReadHashedSpec(json));
  return SpecHash(resolved);
}

}  // namespace ampd::train
