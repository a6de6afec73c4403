#include "engine/train/spec_configs.h"

#include <cmath>
#include <string>
#include <vector>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace ampd::train {
namespace {

using google::protobuf::TextFormat;

ResolvedJobSpec Resolve(const std::string& extra) {
  v1::JobSpec spec;
  EXPECT_TRUE(TextFormat::ParseFromString(
      "model { layers { flatten {} } layers { dense { units: 10 } } loss { softmax_cross_entropy {} } }"
      "data { train { glyphs {} } }",
      &spec));
  EXPECT_TRUE(TextFormat::MergeFromString(extra, &spec));
  auto resolved = ResolveJobSpec(spec);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return *resolved;
}

TEST(SpecConfigs, Optimizers) {
  const auto adamw = OptimizerConfigOf(Resolve(""));
  EXPECT_EQ(adamw.kind, optim::OptimizerKind::kAdamW);
  EXPECT_EQ(adamw.weight_decay, 0.01f);
  const auto sgd = OptimizerConfigOf(Resolve("optimizer { sgd { momentum: 0.5 nesterov: true weight_decay: 0.25 } }"));
  EXPECT_EQ(sgd.kind, optim::OptimizerKind::kSgd);
  EXPECT_EQ(sgd.momentum, 0.5f);
  EXPECT_TRUE(sgd.nesterov);
  EXPECT_EQ(sgd.weight_decay, 0.25f);
  const auto adam = OptimizerConfigOf(Resolve("optimizer { adam { beta1: 0.5 beta2: 0.999999999999 epsilon: 0.1 } }"));
  EXPECT_EQ(adam.kind, optim::OptimizerKind::kAdam);
  EXPECT_EQ(adam.beta1, 0.5f);
  EXPECT_LT(adam.beta2, 1.0f);
  EXPECT_EQ(adam.epsilon, 0.1f);
}

TEST(SpecConfigs, MoreOptimizers) {
  EXPECT_EQ(OptimizerConfigOf(Resolve("optimizer { sgd { momentum: 0.5 dampening: 0.25 } }")).dampening, 0.25f);
  const auto rmsprop =
      OptimizerConfigOf(Resolve("optimizer { rmsprop { smoothing: 0.5 epsilon: 0.25 momentum: 0.75 centered: true "
                                "weight_decay: 2 } clip_value: 3 }"));
  EXPECT_EQ(rmsprop.kind, optim::OptimizerKind::kRmsProp);
  EXPECT_EQ(rmsprop.smoothing, 0.5f);
  EXPECT_EQ(rmsprop.epsilon, 0.25f);
  EXPECT_EQ(rmsprop.momentum, 0.75f);
  EXPECT_TRUE(rmsprop.centered);
  EXPECT_EQ(rmsprop.weight_decay, 2);
  EXPECT_EQ(rmsprop.clip_value, 3);
  EXPECT_TRUE(std::isinf(OptimizerConfigOf(Resolve("")).clip_value));
  const auto adagrad = OptimizerConfigOf(
      Resolve("optimizer { adagrad { learning_rate_decay: 0.5 initial_accumulator: 0.25 epsilon: 0.125 } }"));
  EXPECT_EQ(adagrad.kind, optim::OptimizerKind::kAdagrad);
  EXPECT_EQ(adagrad.rate_decay, 0.5);
  EXPECT_EQ(adagrad.initial_accumulator, 0.25f);
  EXPECT_EQ(adagrad.epsilon, 0.125f);
  const auto lamb = OptimizerConfigOf(Resolve("optimizer { lamb { beta1: 0.5 weight_decay: 0.25 } }"));
  EXPECT_EQ(lamb.kind, optim::OptimizerKind::kLamb);
  EXPECT_EQ(lamb.beta1, 0.5f);
  EXPECT_EQ(lamb.weight_decay, 0.25f);
}

TEST(SpecConfigs, MoreSchedules) {
  const auto of = [](const std::string& schedule) {
    return ScheduleConfigOf(Resolve("optimizer { rmsprop { learning_rate: 0.5 } schedule { " + schedule + " } }"), 90);
  };
  const auto multi = of("multi_step { milestones: 3 milestones: 7 gamma: 0.5 warmup_steps: 2 }");
  EXPECT_EQ(multi.kind, optim::ScheduleKind::kMultiStep);
  EXPECT_EQ(multi.learning_rate, 0.5);
  EXPECT_EQ(multi.milestones, (std::vector<int64_t>{3, 7}));
  EXPECT_EQ(multi.gamma, 0.5);
  EXPECT_EQ(multi.warmup_steps, 2);
  const auto restarts = of("cosine_restarts { period_steps: 5 period_factor: 2 min_ratio: 0.5 warmup_steps: 3 }");
  EXPECT_EQ(restarts.kind, optim::ScheduleKind::kCosineRestarts);
  EXPECT_EQ(restarts.period, 5);
  EXPECT_EQ(restarts.period_factor, 2);
  EXPECT_EQ(restarts.min_ratio, 0.5);
  EXPECT_EQ(restarts.warmup_steps, 3);
  const auto polynomial = of("polynomial { power: 3 min_ratio: 0.5 warmup_steps: 3 }");
  EXPECT_EQ(polynomial.kind, optim::ScheduleKind::kPolynomial);
  EXPECT_EQ(polynomial.power, 3);
  EXPECT_EQ(polynomial.min_ratio, 0.5);
  EXPECT_EQ(polynomial.warmup_steps, 3);
  const auto cycle =
      of("one_cycle { rising_share: 0.25 start_divisor: 2 end_divisor: 4 three_phase: true shape: LINEAR }");
  EXPECT_EQ(cycle.kind, optim::ScheduleKind::kOneCycle);
  EXPECT_EQ(cycle.rising_share, 0.25);
  EXPECT_EQ(cycle.start_divisor, 2);
  EXPECT_EQ(cycle.end_divisor, 4);
  EXPECT_TRUE(cycle.three_phase);
  EXPECT_TRUE(cycle.straight);
  EXPECT_EQ(cycle.total_steps, 90);
  EXPECT_EQ(of("inverse_square_root { warmup_steps: 9 }").kind, optim::ScheduleKind::kInverseSquareRoot);
  EXPECT_EQ(of("inverse_square_root { warmup_steps: 9 }").warmup_steps, 9);
}

TEST(SpecConfigs, SchedulesTakeTheOptimizersRate) {
  const auto cosine = ScheduleConfigOf(
      Resolve("optimizer { sgd { learning_rate: 0.5 } schedule { cosine { warmup_steps: 7 min_ratio: 0.25 } } }"), 90);
  EXPECT_EQ(cosine.kind, optim::ScheduleKind::kCosine);
  EXPECT_EQ(cosine.learning_rate, 0.5);
  EXPECT_EQ(cosine.warmup_steps, 7);
  EXPECT_EQ(cosine.min_ratio, 0.25);
  EXPECT_EQ(cosine.total_steps, 90);
  const auto step = ScheduleConfigOf(Resolve("optimizer { schedule { step { every_steps: 3 gamma: 0.5 } } }"), 90);
  EXPECT_EQ(step.every_steps, 3);
  EXPECT_EQ(step.gamma, 0.5);
  EXPECT_EQ(ScheduleConfigOf(Resolve("optimizer { schedule { linear { warmup_steps: 5 } } }"), 9).min_ratio, 1);
}

TEST(SpecConfigs, LossScaling) {
  EXPECT_EQ(LossScaleConfigOf(Resolve("precision { mode: BF16 }")).kind, optim::LossScaleKind::kNone);
  const auto dynamic = LossScaleConfigOf(Resolve("precision { mode: FP16 loss_scale { hysteresis: 3 min: 4 } }"));
  EXPECT_EQ(dynamic.kind, optim::LossScaleKind::kDynamic);
  EXPECT_EQ(dynamic.init, 65536);
  EXPECT_EQ(dynamic.growth_interval, 2000);
  EXPECT_EQ(dynamic.min, 4);
  EXPECT_EQ(dynamic.max, 0x1p126);
  EXPECT_EQ(dynamic.hysteresis, 3);
  EXPECT_EQ(dynamic.hysteresis_refill, optim::HysteresisRefill::kOnAppliedStep);
  EXPECT_EQ(dynamic.on_floor, optim::OnFloor::kFail);
  const auto rollback = LossScaleConfigOf(Resolve(
      "precision { mode: FP16 loss_scale { on_floor: ROLLBACK max_rollbacks: 7 hysteresis_refill: ON_GROWTH } }"));
  EXPECT_EQ(rollback.hysteresis_refill, optim::HysteresisRefill::kOnGrowth);
  EXPECT_EQ(rollback.on_floor, optim::OnFloor::kRollback);
  EXPECT_EQ(rollback.max_rollbacks, 7);
  EXPECT_EQ(LossScaleConfigOf(Resolve("precision { mode: FP16 loss_scale { on_floor: HOLD } }")).on_floor,
            optim::OnFloor::kHold);
  EXPECT_EQ(LossScaleConfigOf(Resolve("precision { mode: FP16 loss_scale { on_floor: FALLBACK_BF16 } }")).on_floor,
            optim::OnFloor::kFallbackBf16);
  const auto fixed = LossScaleConfigOf(Resolve("precision { mode: FP16 loss_scale { kind: STATIC init: 0.5 } }"));
  EXPECT_EQ(fixed.kind, optim::LossScaleKind::kStatic);
  EXPECT_EQ(fixed.init, 0.5);
}

TEST(SpecConfigs, AnotherModeTakesTheLayersOfTheJobsModeAlong) {
  const auto spec = Resolve(
      "precision { mode: FP16 loss_scale { init: 8 on_floor: FALLBACK_BF16 }"
      "            rules { match: '*' } rules { match: 'dense*' dtype: FP16 } }");
  const auto bf16 = WithMode(spec, v1::PrecisionSpec::BF16);
  ASSERT_TRUE(bf16.ok()) << bf16.status();
  const v1::PrecisionSpec& precision = bf16->proto().precision();
  EXPECT_EQ(precision.mode(), v1::PrecisionSpec::BF16);
  EXPECT_EQ(precision.rules(0).dtype(), v1::PrecisionSpec::FP32);
  EXPECT_EQ(precision.rules(1).dtype(), v1::PrecisionSpec::BF16);
  EXPECT_EQ(LossScaleConfigOf(*bf16).kind, optim::LossScaleKind::kNone);
  EXPECT_EQ(bf16->proto().optimizer().SerializeAsString(), spec.proto().optimizer().SerializeAsString());
}

TEST(SpecConfigs, RulesThatTheOtherModeForbidsFallAway) {
  const auto spec = Resolve(
      "precision { mode: FP16 rules { match: '*' dtype: BF16 } rules { match: 'dense*' dtype: TF32 }"
      "            rules { match: 'flatten*' dtype: FP32 } }");
  const auto dtypes = [&](v1::PrecisionSpec::Mode mode) {
    std::vector<v1::PrecisionSpec::Mode> kept;
    const auto changed = WithMode(spec, mode);
    EXPECT_TRUE(changed.ok()) << changed.status();
    if (!changed.ok()) return kept;
    for (const v1::PrecisionRule& rule : changed->proto().precision().rules()) kept.push_back(rule.dtype());
    return kept;
  };
  using Modes = std::vector<v1::PrecisionSpec::Mode>;
  EXPECT_EQ(dtypes(v1::PrecisionSpec::FP32), (Modes{v1::PrecisionSpec::FP32}));
  EXPECT_EQ(dtypes(v1::PrecisionSpec::TF32), (Modes{v1::PrecisionSpec::TF32, v1::PrecisionSpec::FP32}));
  const Modes all = {v1::PrecisionSpec::BF16, v1::PrecisionSpec::TF32, v1::PrecisionSpec::FP32};
  EXPECT_EQ(dtypes(v1::PrecisionSpec::BF16), all);
  EXPECT_EQ(dtypes(v1::PrecisionSpec::FP8), all);
}

TEST(SpecConfigs, MastersAreRoundedOnlyOnRequest) {
  EXPECT_EQ(MasterDType(Resolve("precision { mode: FP16 }")), DType::kF32);
  EXPECT_EQ(MasterDType(Resolve("precision { mode: FP16 master_weights: false }")), DType::kF16);
  EXPECT_EQ(MasterDType(Resolve("precision { mode: BF16 master_weights: false }")), DType::kBF16);
  EXPECT_EQ(MasterDType(Resolve("precision { mode: FP32 master_weights: false }")), DType::kF32);
}

TEST(SpecConfigs, TheHashIsOfWhatTheNumbersFollowFrom) {
  const std::string base = SpecHash(Resolve(""));
  EXPECT_EQ(base.size(), 64u);
  EXPECT_EQ(SpecHash(Resolve("name: 'other' report { every_steps: 1 } checkpoint { every_steps: 3 } "
                             "labels { key: 'a' value: 'b' } data { device_cache { max_bytes: 5 } }")),
            base);
  for (const char* extra : {"seed: 1", "precision { mode: FP16 }", "optimizer { sgd {} }", "train { batch_size: 8 }",
                            "data { shuffle: false }"}) {
    EXPECT_NE(SpecHash(Resolve(extra)), base) << extra;
  }
}

// What an earlier build wrote has the fields that it knew.
TEST(SpecConfigs, AHashedSpecOfAnEarlierBuildFitsWithNewDefaults) {
  const auto spec = Resolve("seed: 9 optimizer { sgd { momentum: 0.9 } }");
  EXPECT_EQ(HashOfHashedSpec(HashedSpec(spec)).value(), SpecHash(spec));
  // As before momentum had a dampening, training a micro-batch and datasets a shuffle.
  std::string json = HashedSpec(spec);
  for (const std::string field : {"\"dampening\":0", "\"micro_batch_size\":32", "\"shuffle\":true"}) {
    const size_t at = json.find(field);
    ASSERT_NE(at, std::string::npos) << field << " in " << json;
    const bool first = json[at - 1] == '{';
    json.erase(first ? at : at - 1, field.size() + 1);
  }
  EXPECT_NE(json, HashedSpec(spec));
  EXPECT_EQ(HashOfHashedSpec(json).value(), SpecHash(spec));
}

// JSON does not tell -0 from 0.
TEST(SpecConfigs, AHashedSpecFitsWhateverItsNumbersAre) {
  for (const char* text :
       {"optimizer { sgd { momentum: -0.0 } }", "optimizer { sgd { learning_rate: 0.1234567890123456 } }",
        "optimizer { sgd { learning_rate: 4.9e-324 } }"}) {
    const auto spec = Resolve(text);
    EXPECT_EQ(HashOfHashedSpec(HashedSpec(spec)).value(), SpecHash(spec)) << text;
  }
}

TEST(SpecConfigs, AHashedSpecThatSaysSomethingElseDoesNotFit) {
  const auto spec = Resolve("seed: 9 optimizer { sgd { momentum: 0.9 } }");
  std::string json = HashedSpec(spec);
  json.replace(json.find("0.9"), 3, "0.8");
  EXPECT_NE(HashOfHashedSpec(json).value(), SpecHash(spec));
  for (const char* other : {"seed: 8 optimizer { sgd { momentum: 0.9 } }", "seed: 9 optimizer { sgd {} }"}) {
    EXPECT_NE(HashOfHashedSpec(HashedSpec(Resolve(other))).value(), SpecHash(spec)) << other;
  }
  // Of a later build, which knows more.
  std::string later = HashedSpec(spec);
  later.insert(1, "\"new_field\": 1, ");
  EXPECT_EQ(HashOfHashedSpec(later).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(HashOfHashedSpec("{}").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ampd::train
