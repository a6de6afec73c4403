#include "proto/spec/resolve.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"
#include "proto/spec/text.h"
#include "proto/spec/yaml.h"
#include "tests/unit/proto/spec/resolve_test_util.h"

namespace ampd {
namespace {

using google::protobuf::util::MessageDifferencer;

TEST(ResolveJobSpecTest, FillsEveryDefault) {
  const absl::StatusOr<ResolvedJobSpec> resolved = ResolveJobSpec(Minimal());
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(ToYaml(resolved->proto()), R"(name: job
seed: 0
model:
  layers:
    - name: conv2d_0
      inputs: [input]
      conv2d:
        filters: 8
        kernel: [3, 3]
        stride: [1, 1]
        padding: VALID
        bias: true
        activation: NONE
        dilation: [1, 1]
        groups: 1
    - name: max_pool_1
      inputs: [conv2d_0]
      max_pool:
        size: [2, 2]
        stride: [2, 2]
        padding: VALID
        dilation: [1, 1]
    - name: flatten_2
      inputs: [max_pool_1]
      flatten: {}
    - name: dense_3
      inputs: [flatten_2]
      dense:
        units: 10
        bias: true
        activation: NONE
  loss:
    softmax_cross_entropy: {}
data:
  train:
    glyphs:
      samples: 10000
      seed: 1
  image: {}
  shuffle: true
precision:
  mode: FP32
  master_weights: true
  loss_scale:
    kind: NONE
optimizer:
  adamw:
    learning_rate: 0.001
    beta1: 0.9
    beta2: 0.999
    epsilon: 1e-08
    weight_decay: 0.01
  schedule:
    constant: {}
  decay_norms_and_biases: true
train:
  epochs: 1
  batch_size: 32
  micro_batch_size: 32
checkpoint:
  every_seconds: 300
  every_steps: 0
  keep_last: 2
resources:
  gpus: 1
  priority: 0
  preemptible: false
  share: false
retry:
  max_attempts: 3
  backoff_seconds: 1
  max_backoff_seconds: 60
limits:
  skip_window_steps: 500
report:
  max_per_second: 10
  diagnostics_every_steps: 0
phases:
  - name: main
    every: 1
)");
}

TEST(ResolveJobSpecTest, DefaultsThatDependOnOtherFields) {
  const auto resolve = [](const std::vector<std::string>& sets) {
    absl::StatusOr<ResolvedJobSpec> resolved = ResolveJobSpec(Minimal(sets));
    EXPECT_TRUE(resolved.ok()) << resolved.status();
    return resolved->proto();
  };
  const v1::LossScaleSpec scale = resolve({"precision.mode=FP16"}).precision().loss_scale();
  EXPECT_EQ(scale.kind(), v1::LossScaleSpec::DYNAMIC);
  EXPECT_EQ(scale.init(), 65536);
  EXPECT_EQ(scale.growth_factor(), 2);
  EXPECT_EQ(scale.backoff_factor(), 0.5);
  EXPECT_EQ(scale.growth_interval(), 2000);
  EXPECT_EQ(scale.min(), 1);
  EXPECT_EQ(scale.max(), 0x1p126);
  EXPECT_EQ(scale.hysteresis(), 1);
  EXPECT_EQ(scale.on_floor(), v1::LossScaleSpec::FAIL);
  EXPECT_EQ(scale.hysteresis_refill(), v1::LossScaleSpec::ON_APPLIED_STEP);
  EXPECT_FALSE(scale.has_max_rollbacks());
  const v1::LossScaleSpec rollback =
      resolve({"precision={mode: FP16, loss_scale: {on_floor: ROLLBACK}}"}).precision().loss_scale();
  EXPECT_EQ(rollback.max_rollbacks(), 3);
  EXPECT_EQ(resolve({"precision.mode=BF16"}).precision().loss_scale().kind(), v1::LossScaleSpec::NONE);
  EXPECT_EQ(resolve({"data.eval={glyphs: {}}"}).data().eval().glyphs().seed(), 2);
  EXPECT_EQ(resolve({"data.eval={glyphs: {}}"}).train().eval_every_epochs(), 1);
  EXPECT_FALSE(resolve({"train.steps=5"}).train().has_epochs());
  EXPECT_EQ(resolve({"train.batch_size=64"}).train().micro_batch_size(), 64);
  EXPECT_EQ(resolve({"data.train={npy: {inputs: a.npz}}"}).data().train().npy().targets(), "a.npz");
  EXPECT_EQ(resolve({"data.train={npy: {inputs: a.npz}}"}).data().train().npy().targets_key(), "y");
  EXPECT_FALSE(resolve({"report.every_steps=1"}).report().has_max_per_second());
  EXPECT_EQ(resolve({"optimizer.sgd={}"}).optimizer().sgd().learning_rate(), 0.01);
  EXPECT_EQ(resolve({"optimizer.adam={}"}).optimizer().adam().weight_decay(), 0);
  EXPECT_EQ(resolve({"optimizer.sgd={}"}).optimizer().sgd().dampening(), 0);
  EXPECT_EQ(resolve({"optimizer.rmsprop={}"}).optimizer().rmsprop().smoothing(), 0.99);
  EXPECT_EQ(resolve({"optimizer.rmsprop={}"}).optimizer().rmsprop().epsilon(), 1e-8);
  EXPECT_EQ(resolve({"optimizer.adagrad={}"}).optimizer().adagrad().learning_rate(), 0.01);
  EXPECT_EQ(resolve({"optimizer.adagrad={}"}).optimizer().adagrad().epsilon(), 1e-10);
  EXPECT_EQ(resolve({"optimizer.lamb={}"}).optimizer().lamb().epsilon(), 1e-6);
  EXPECT_EQ(resolve({"optimizer.lamb={}"}).optimizer().lamb().weight_decay(), 0.01);
  EXPECT_FALSE(resolve({}).optimizer().has_ema());
  EXPECT_EQ(resolve({"optimizer.ema={}"}).optimizer().ema().decay(), 0.999);
  EXPECT_FALSE(resolve({"optimizer.ema={}"}).optimizer().ema().evaluate());
  EXPECT_FALSE(resolve({"optimizer.ema={}"}).optimizer().ema().samples());
  const v1::ParameterGroup group = resolve({"optimizer.groups=[{match: '*.bias'}]"}).optimizer().groups(0);
  EXPECT_EQ(group.learning_rate_scale(), 1);
  EXPECT_FALSE(group.has_weight_decay());
  const v1::OneCycleSchedule cycle = resolve({"optimizer.schedule.one_cycle={}"}).optimizer().schedule().one_cycle();
  EXPECT_EQ(cycle.rising_share(), 0.3);
  EXPECT_EQ(cycle.start_divisor(), 25);
  EXPECT_EQ(cycle.end_divisor(), 10000);
  EXPECT_EQ(cycle.shape(), v1::OneCycleSchedule::COSINE);
  const auto schedule = [&](const std::string& set) {
    return resolve({"optimizer.schedule." + set}).optimizer().schedule();
  };
  EXPECT_EQ(schedule("inverse_square_root={}").inverse_square_root().warmup_steps(), 4000);
  EXPECT_EQ(schedule("multi_step={milestones: [3]}").multi_step().gamma(), 0.1);
  EXPECT_EQ(schedule("cosine_restarts={period_steps: 3}").cosine_restarts().period_factor(), 1);
  EXPECT_EQ(schedule("polynomial={}").polynomial().power(), 1);
  EXPECT_EQ(resolve({"optimizer.schedule.step={every_steps: 5}"}).optimizer().schedule().step().gamma(), 0.1);
  EXPECT_EQ(resolve({"optimizer.schedule.linear={}"}).optimizer().schedule().linear().min_ratio(), 1);
  EXPECT_EQ(resolve({"model.layers[1]={batch_norm: {}}"}).model().layers(1).batch_norm().momentum(), 0.1);
  EXPECT_EQ(resolve({"model.layers[1].max_pool.stride=[1]"}).model().layers(1).max_pool().stride(1), 1);
}

TEST(ResolveJobSpecTest, DefaultsOfConvolutionsNormsAndAttention) {
  v1::JobSpec spec;
  ASSERT_EQ(ParseYaml(R"(
model:
  layers:
    - conv2d: {filters: 8, kernel: [3], pads: [1, 2]}
    - conv_transpose2d: {filters: 8, kernel: [4], stride: [2], pads: [1], output_padding: [1]}
    - group_norm: {groups: 4}
    - instance_norm: {}
    - layer_norm: {}
    - rms_norm: {}
    - multi_head_attention: {heads: 2}
  loss: {softmax_cross_entropy: {}}
data: {train: {glyphs: {}}}
)",
                      "f", &spec),
            absl::OkStatus());
  const absl::StatusOr<ResolvedJobSpec> resolved = ResolveJobSpec(spec);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  const auto kind = [&](int i) { return resolved->proto().model().layers(i).ShortDebugString(); };
  EXPECT_THAT(kind(0), testing::HasSubstr("pads: 1 pads: 2 pads: 1 pads: 2"));
  EXPECT_THAT(kind(1),
              testing::HasSubstr("conv_transpose2d { filters: 8 kernel: 4 kernel: 4 stride: 2 stride: 2 pads: 1 "
                                 "pads: 1 pads: 1 pads: 1 output_padding: 1 output_padding: 1 dilation: 1 "
                                 "dilation: 1 groups: 1 bias: true activation: NONE }"));
  EXPECT_THAT(kind(2), testing::HasSubstr("group_norm { groups: 4 epsilon: 1e-05 affine: true }"));
  EXPECT_THAT(kind(3), testing::HasSubstr("instance_norm { epsilon: 1e-05 affine: false }"));
  EXPECT_THAT(kind(4), testing::HasSubstr("layer_norm { epsilon: 1e-05 bias: true }"));
  EXPECT_THAT(kind(5), testing::HasSubstr("rms_norm { epsilon: 1.1920928955078125e-07 }"));
  EXPECT_THAT(kind(6), testing::HasSubstr("multi_head_attention { heads: 2 bias: true }"));
}

TEST(ResolveJobSpecTest, ChecksConvolutionsNormsAndAttention) {
  const auto violated = [](const std::string& layer) {
    v1::JobSpec spec;
    const std::string yaml = absl::StrCat("model:\n  layers: [{name: l, ", layer,
                                          "}]\n  loss: {softmax_cross_entropy: {}}\ndata: {train: {glyphs: {}}}\n");
    EXPECT_EQ(ParseYaml(yaml, "f", &spec), absl::OkStatus()) << yaml;
    return Violated(spec);
  };
  EXPECT_THAT(violated("conv2d: {filters: 8, kernel: [3], padding: SAME, pads: [1]}"),
              testing::HasSubstr("conv2d.pads: cannot be given with padding SAME"));
  EXPECT_THAT(violated("conv2d: {filters: 8, kernel: [3], pads: [1, 2, 3]}"), testing::HasSubstr("has 3 numbers"));
  EXPECT_THAT(violated("conv2d: {filters: 8, kernel: [3], groups: 3}"),
              testing::HasSubstr("conv2d.groups: must divide filters 8, is 3"));
  EXPECT_THAT(violated("conv2d: {filters: 8, kernel: [3], groups: 0}"), testing::HasSubstr("conv2d.groups"));
  EXPECT_THAT(violated("conv_transpose2d: {filters: 8, kernel: [3], output_padding: [1]}"),
              testing::HasSubstr("output_padding[0]"));
  EXPECT_THAT(violated("group_norm: {}"), testing::HasSubstr("group_norm.groups: required"));
  EXPECT_THAT(violated("layer_norm: {epsilon: 0}"), testing::HasSubstr("layer_norm.epsilon"));
  EXPECT_THAT(violated("multi_head_attention: {}"), testing::HasSubstr("multi_head_attention.heads: required"));
  EXPECT_THAT(violated("inputs: [input, input, input], multi_head_attention: {heads: 1}"),
              testing::HasSubstr("multi_head_attention takes one or two, has 3"));
}

TEST(ResolveJobSpecTest, IsIdempotentAlsoThroughYaml) {
  const std::vector<std::vector<std::string>> cases = {
      {},
      {"precision={mode: FP16, rules: [{match: 'dense*'}], loss_scale: {init: 1e30}}", "data.eval={glyphs: {}}"},
      {"precision={mode: FP16, loss_scale: {kind: STATIC, init: 1}}",
       "train={steps: 10, batch_size: 6, micro_batch_size: 3}"},
      {"optimizer={sgd: {momentum: 0.9, nesterov: true}, schedule: {cosine: {warmup_steps: 3}}, clip_global_norm: 1}",
       "report.every_steps=1", "data.train={npy: {inputs: a.npz}}", "labels.a=b"},
      {"model.layers[1]={name: sum, add: {}, inputs: [input, conv2d_0]}"},
      {"optimizer={rmsprop: {centered: true}, clip_value: 0.5, schedule: {multi_step: {milestones: [3, 9]}}, ema: {}, "
       "groups: [{match: '*.bias', weight_decay: 0, learning_rate_scale: 0.1}, {match: '*'}]}"},
      {"optimizer={lamb: {}, decay_norms_and_biases: false, schedule: {one_cycle: {shape: LINEAR}}}"},
  };
  for (const auto& sets : cases) {
    const absl::StatusOr<ResolvedJobSpec> once = ResolveJobSpec(Minimal(sets));
    ASSERT_TRUE(once.ok()) << once.status();
    const absl::StatusOr<ResolvedJobSpec> twice = ResolveJobSpec(once->proto());
    ASSERT_TRUE(twice.ok()) << twice.status();
    EXPECT_TRUE(MessageDifferencer::Equals(once->proto(), twice->proto()));
    v1::JobSpec read;
    ASSERT_EQ(ParseYaml(ToYaml(once->proto()), "f", &read), absl::OkStatus());
    EXPECT_TRUE(MessageDifferencer::Equals(once->proto(), read));
  }
}

TEST(ResolveJobSpecTest, ChecksRanges) {
  ExpectViolations({
      {"train.batch_size=0", "train.batch_size: must be at least 1, is 0"},
      {"train.batch_size=2000000", "train.batch_size: must be at most 1048576, is 2000000"},
      {"train.micro_batch_size=5", "train.micro_batch_size: must divide batch_size, 32, is 5"},
      {"train.micro_batch_size=64", "train.micro_batch_size: must divide batch_size, 32, is 64"},
      {"train.micro_batch_size=0", "train.micro_batch_size: must be at least 1, is 0"},
      {"train={epochs: 1, steps: 1}", "train: exactly one of epochs and steps may be set; both are"},
      {"train.epochs=0", "train.epochs: must be at least 1, is 0"},
      {"train.steps=-1", "train.steps: must be at least 1, is -1"},
      {"train.eval_every_epochs=1", "train.eval_every_epochs: needs data.eval"},
      {"model.layers[3].dense.units=0", "model.layers[3].dense.units: required, at least 1"},
      {"model.layers[3].dense.units=-4", "model.layers[3].dense.units: must be at least 1, is -4"},
      {"model.layers[3].dense.units=1048577", "model.layers[3].dense.units: must be at most 1048576, is 1048577"},
      {"model.layers[0].conv2d.filters=null", "model.layers[0].conv2d.filters: required, at least 1"},
      {"model.layers[0].conv2d.kernel=[]", "model.layers[0].conv2d.kernel: required"},
      {"model.layers[0].conv2d.kernel=[1, 2, 3]",
       "model.layers[0].conv2d.kernel: must be one number or [height, width], has 3 numbers"},
      {"model.layers[0].conv2d.kernel=[1, 1025]", "model.layers[0].conv2d.kernel[1]: must be at most 1024, is 1025"},
      {"model.layers[0].conv2d.stride=[0]",
       "model.layers[0].conv2d.stride[0]: must be at least 1, is 0\n"
       "model.layers[0].conv2d.stride[1]: must be at least 1, is 0"},
      {"model.layers[1].max_pool.size=[]", "model.layers[1].max_pool.size: required"},
      {"model.layers[1]={dropout: {rate: 1}}", "model.layers[1].dropout.rate: must be in [0, 1), is 1"},
      {"model.layers[1]={batch_norm: {momentum: 0}}", "model.layers[1].batch_norm.momentum: must be in (0, 1], is 0"},
      {"model.layers[1]={batch_norm: {epsilon: 0}}", "model.layers[1].batch_norm.epsilon: must be in [1e-30, 1], is 0"},
      {"optimizer={sgd: {learning_rate: -1}}", "optimizer.sgd.learning_rate: must be in [0, 3.40282e+38], is -1"},
      {"optimizer={sgd: {momentum: 1}}", "optimizer.sgd.momentum: must be in [0, 1), is 1"},
      {"optimizer={sgd: {nesterov: true}}", "optimizer.sgd.nesterov: needs momentum > 0"},
      {"optimizer={adam: {beta1: 1}}", "optimizer.adam.beta1: must be in [0, 1), is 1"},
      {"optimizer={adamw: {epsilon: 0}}", "optimizer.adamw.epsilon: must be in [1e-30, 1], is 0"},
      {"optimizer={schedule: {step: {}}}", "optimizer.schedule.step.every_steps: required, at least 1"},
      {"optimizer={schedule: {step: {every_steps: 1, gamma: 0}}}",
       "optimizer.schedule.step.gamma: must be in (0, 1], is 0"},
      {"optimizer={schedule: {cosine: {min_ratio: 2}}}",
       "optimizer.schedule.cosine.min_ratio: must be in [0, 1], is 2"},
      {"optimizer={schedule: {linear: {warmup_steps: -1}}}",
       "optimizer.schedule.linear.warmup_steps: must be at least 0, is -1"},
      {"optimizer={clip_global_norm: 0}", "optimizer.clip_global_norm: must be in (0, 3.40282e+38], is 0"},
      {"optimizer={sgd: {dampening: 0.5}}", "optimizer.sgd.dampening: needs momentum > 0"},
      {"optimizer={sgd: {momentum: 0.5, dampening: 1.5}}", "optimizer.sgd.dampening: must be in [0, 1], is 1.5"},
      {"optimizer={sgd: {momentum: 0.5, dampening: 0.5, nesterov: true}}", "optimizer.sgd.nesterov: needs dampening 0"},
      {"optimizer={rmsprop: {smoothing: 1}}", "optimizer.rmsprop.smoothing: must be in [0, 1), is 1"},
      {"optimizer={rmsprop: {momentum: -1}}", "optimizer.rmsprop.momentum: must be in [0, 1), is -1"},
      {"optimizer={adagrad: {learning_rate_decay: -1}}",
       "optimizer.adagrad.learning_rate_decay: must be in [0, 3.40282e+38], is -1"},
      {"optimizer={adagrad: {initial_accumulator: -1}}",
       "optimizer.adagrad.initial_accumulator: must be in [0, 3.40282e+38], is -1"},
      {"optimizer={lamb: {beta2: 1}}", "optimizer.lamb.beta2: must be in [0, 1), is 1"},
      {"optimizer={clip_value: 0}", "optimizer.clip_value: must be in (0, 3.40282e+38], is 0"},
      {"optimizer={clip_value: 1, clip_global_norm: 1}",
       "optimizer.clip_value: exactly one of clip_global_norm and clip_value may be set; both are"},
      {"optimizer={groups: [{}]}", "optimizer.groups[0].match: required"},
      {"optimizer={groups: [{match: a, weight_decay: -1}]}",
       "optimizer.groups[0].weight_decay: must be in [0, 3.40282e+38], is -1"},
      {"optimizer={groups: [{match: a}, {match: a, learning_rate_scale: -1}]}",
       "optimizer.groups[1].learning_rate_scale: must be in [0, 3.40282e+38], is -1"},
      {"optimizer={ema: {decay: 1}}", "optimizer.ema.decay: must be in [0, 1), is 1"},
      {"optimizer={ema: {evaluate: true}}", "optimizer.ema.evaluate: needs data.eval"},
      {"optimizer={ema: {samples: true}}", "optimizer.ema.samples: needs report.samples"},
      {"optimizer={schedule: {multi_step: {}}}", "optimizer.schedule.multi_step.milestones: required, at least one"},
      {"optimizer={schedule: {multi_step: {milestones: [0]}}}",
       "optimizer.schedule.multi_step.milestones[0]: must be at least 1, is 0"},
      {"optimizer={schedule: {multi_step: {milestones: [4, 4]}}}",
       "optimizer.schedule.multi_step.milestones[1]: must be more than the one before, 4, is 4"},
      {"optimizer={schedule: {cosine_restarts: {}}}",
       "optimizer.schedule.cosine_restarts.period_steps: required, at least 1"},
      {"optimizer={schedule: {cosine_restarts: {period_steps: 1, period_factor: 0}}}",
       "optimizer.schedule.cosine_restarts.period_factor: must be at least 1, is 0"},
      {"optimizer={schedule: {polynomial: {power: 0}}}",
       "optimizer.schedule.polynomial.power: must be in (0, 100], is 0"},
      {"optimizer={schedule: {one_cycle: {rising_share: 2}}}",
       "optimizer.schedule.one_cycle.rising_share: must be in [0, 1], is 2"},
      {"optimizer={schedule: {one_cycle: {rising_share: 0.6, three_phase: true}}}",
       "optimizer.schedule.one_cycle.rising_share: must be in [0, 0.5], is 0.6"},
      {"optimizer={schedule: {one_cycle: {start_divisor: 0}}}",
       "optimizer.schedule.one_cycle.start_divisor: must be in [1, 1e+30], is 0"},
      {"optimizer={schedule: {inverse_square_root: {warmup_steps: 0}}}",
       "optimizer.schedule.inverse_square_root.warmup_steps: must be at least 1, is 0"},
      {"checkpoint={keep_last: 0}", "checkpoint.keep_last: must be at least 1, is 0"},
      {"checkpoint={every_seconds: -1}", "checkpoint.every_seconds: must be at least 0, is -1"},
      {"resources={gpus: 0}", "resources.gpus: must be at least 1, is 0"},
      {"resources={gpus: 3}", "train.batch_size: 32 samples cannot be shared evenly by 3 devices"},
      {"resources={gpus: 2, share: true}", "resources.share: goes with one device; resources.gpus is 2"},
      {"resources={cpu_threads: 0}", "resources.cpu_threads: must be at least 1, is 0"},
      {"retry={max_attempts: 0}", "retry.max_attempts: must be at least 1, is 0"},
      {"retry={backoff_seconds: -1}", "retry.backoff_seconds: must be in [0, 86400], is -1"},
      {"retry={backoff_seconds: 20, max_backoff_seconds: 10}",
       "retry.max_backoff_seconds: must be at least retry.backoff_seconds, 20, is 10"},
      {"limits={max_cost_usd: 0}", "limits.max_cost_usd: must be > 0, is 0"},
      {"limits={max_run_seconds: 0}", "limits.max_run_seconds: must be at least 1, is 0"},
      {"limits={max_skip_ratio: 0}", "limits.max_skip_ratio: must be in (0, 1], is 0"},
      {"limits={skip_window_steps: 0}", "limits.skip_window_steps: must be at least 1, is 0"},
      {"report={max_per_second: 0}", "report.max_per_second: must be in (0, 1000], is 0"},
      {"report={every_steps: 0}", "report.every_steps: must be at least 1, is 0"},
      {"report={max_per_second: NaN}", "report.max_per_second: must be a finite number, is nan"},
      {"data.train.glyphs.samples=0", "data.train.glyphs.samples: must be at least 1, is 0"},
      {"data.train.limit=-1", "data.train.limit: must be at least 0, is -1"},
      {"data.image={random_crop_padding: -1}", "data.image.random_crop_padding: must be at least 0, is -1"},
      {"phases=[{every: 0}]", "phases[0].every: must be at least 1, is 0"},
  });
}

constexpr char kSequences[] = R"(
model:
  layers: [{lstm: {units: 8, bidirectional: true}}, {positional_embedding: {positions: 9}}, {slice: {begin: 3}}]
  loss: {ctc: {}}
data: {train: {npy: {inputs: a.npz, lengths_key: n, target_lengths: b.npy}}}
)";

v1::JobSpec Sequences(const std::string& set) {
  v1::JobSpec spec;
  EXPECT_EQ(ParseYaml(kSequences, "f", &spec), absl::OkStatus());
  EXPECT_EQ(ApplySet(&spec, set), absl::OkStatus());
  return spec;
}

TEST(ResolveJobSpecTest, DefaultsOfSequences) {
  const absl::StatusOr<ResolvedJobSpec> resolved = ResolveJobSpec(Sequences("name=x"));
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  const v1::NpyDataset& npy = resolved->proto().data().train().npy();
  EXPECT_EQ(npy.ShortDebugString(),
            "inputs: \"a.npz\" targets: \"a.npz\" inputs_key: \"x\" targets_key: \"y\" lengths: \"a.npz\" lengths_key: "
            "\"n\" target_lengths: \"b.npy\" target_lengths_key: \"target_lengths\"");
  const v1::ModelSpec& model = resolved->proto().model();
  EXPECT_EQ(model.layers(1).positional_embedding().deviation(), 0.02);
  EXPECT_EQ(model.layers(2).slice().axis(), -1);
  EXPECT_FALSE(model.layers(2).slice().has_end());
  EXPECT_EQ(model.loss().ctc().blank(), 0);
}

TEST(ResolveJobSpecTest, ChecksSequences) {
  const std::vector<Case> cases = {
      {"model.layers[1].positional_embedding.positions=0",
       "model.layers[1].positional_embedding.positions: required, at least 1"},
      {"model.layers[1].positional_embedding.deviation=11",
       "model.layers[1].positional_embedding.deviation: must be in [0, 10], is 11"},
      {"model.layers[2].slice.axis=0", "model.layers[2].slice.axis: 0 is the batch, which cannot be cut"},
      {"model.layers[2].slice.axis=4", "model.layers[2].slice.axis: must be at most 3, is 4"},
      {"model.layers[2]={transpose: {axes: [2, 2]}}",
       "model.layers[2].transpose.axes: must be 1 to the input's last axis, at most 3, each once"},
      {"model.layers[2]={max_pool: {size: [2], dilation: [0, 1]}}",
       "model.layers[2].max_pool.dilation[0]: must be at least 1, is 0"},
      {"model.layers[2]={max_pool: {size: [2], count_include_pad: true}}",
       "model.layers[2].max_pool.count_include_pad: is for avg_pool; padding never wins a maximum"},
      {"model.loss.ctc.blank=-1", "model.loss.ctc.blank: must be at least 0, is -1"},
      {"data.train={npy: {inputs: a.npy, targets: b.npy, lengths_key: n}}",
       "data.train.npy.lengths: required with lengths_key unless inputs is an .npz"},
      {"data.eval={npy: {inputs: a.npz}}", "data.eval: needs lengths, as data.train has them"},
      {"data.length_buckets=[8, 12]", "data.length_buckets[1]: must be a multiple of 8, is 12"},
      {"data.length_buckets=[16, 8]", "data.length_buckets[1]: must be above the one before"},
      {"data.length_buckets=[0]",
       "data.length_buckets[0]: must be at least 8, is 0\ndata.length_buckets[0]: must be above the one before"},
  };
  for (const Case& c : cases) EXPECT_EQ(Violated(Sequences(c.set)), c.violation) << c.set;
  EXPECT_EQ(Violated(Minimal({"data.length_buckets=[8]"})), "data.length_buckets: needs a dataset with lengths");
}

TEST(ResolveJobSpecTest, ChecksLossScaling) {
  ExpectViolations({
      {"precision={mode: FP16, loss_scale: {init: 0.5}}",
       "precision.loss_scale.init: must be in [min, max], [1, 8.50706e+37], is 0.5"},
      {"precision={mode: FP16, loss_scale: {init: -1}}",
       "precision.loss_scale.init: must be in (0, 8.50706e+37], is -1\n"
       "precision.loss_scale.init: must be in [min, max], [1, 8.50706e+37], is -1"},
      {"precision={mode: FP16, loss_scale: {min: 8, max: 4}}",
       "precision.loss_scale.min: must be at most max, 4, is 8"},
      {"precision={mode: FP16, loss_scale: {growth_factor: 1}}",
       "precision.loss_scale.growth_factor: must be in (1, 1e+06], is 1"},
      {"precision={mode: FP16, loss_scale: {backoff_factor: 1}}",
       "precision.loss_scale.backoff_factor: must be in (0, 1), is 1"},
      {"precision={mode: FP16, loss_scale: {growth_interval: 0}}",
       "precision.loss_scale.growth_interval: must be at least 1, is 0"},
      {"precision={mode: FP16, loss_scale: {hysteresis: 0}}",
       "precision.loss_scale.hysteresis: must be at least 1, is 0"},
      {"precision={mode: FP16, loss_scale: {kind: STATIC}}", "precision.loss_scale.init: required for a STATIC scale"},
      {"precision={mode: FP16, loss_scale: {on_floor: ROLLBACK, max_rollbacks: 0}}",
       "precision.loss_scale.max_rollbacks: must be at least 1, is 0"},
      {"precision={mode: FP16, loss_scale: {max_rollbacks: 2}}",
       "precision.loss_scale.max_rollbacks: needs on_floor ROLLBACK"},
      {"precision={mode: FP16, loss_scale: {on_floor: ROLLBACK, max_rollbacks: 2}}", ""},
      {"precision={mode: FP16, loss_scale: {on_floor: HOLD, hysteresis_refill: ON_GROWTH}}", ""},
      {"precision={mode: FP16, loss_scale: {on_floor: FALLBACK_BF16}}", ""},
      {"precision={mode: FP16, loss_scale: {kind: STATIC, init: 8, on_floor: FALLBACK_BF16}}",
       "precision.loss_scale.on_floor: goes with kind DYNAMIC: a STATIC scale never falls"},
      {"precision={mode: BF16, loss_scale: {on_floor: FALLBACK_BF16}}", ""},
      {"report.diagnostics_every_steps=-1", "report.diagnostics_every_steps: must be at least 0, is -1"},
      {"precision={mode: FP16, loss_scale: {kind: STATIC, init: 0.5}}", ""},
      {"precision={mode: FP32, loss_scale: {init: 4096}}", ""},
  });
}

TEST(ResolveJobSpecTest, ChecksPrecisionRules) {
  ExpectViolations({
      {"precision={mode: FP16, rules: [{match: 'dense*', dtype: FP32}]}", ""},
      {"precision={mode: FP16, rules: [{match: dense_4}]}",
       "precision.rules[0].match: no layer matches 'dense_4'; did you mean dense_3?"},
      {"precision={mode: FP16, rules: [{match: 'x*'}]}", "precision.rules[0].match: no layer matches 'x*'"},
      {"precision={mode: FP16, rules: [{}]}", "precision.rules[0].match: required"},
      {"precision={mode: FP32, rules: [{match: '*', dtype: BF16}]}",
       "precision.rules[0].dtype: must be FP32 in a job of mode FP32, is BF16"},
      {"precision={mode: TF32, rules: [{match: '*', dtype: BF16}]}",
       "precision.rules[0].dtype: must be FP32 or TF32 in a job of mode TF32, is BF16"},
      {"precision={mode: BF16, rules: [{match: '*', dtype: FP16}]}",
       "precision.rules[0].dtype: must be FP32 or TF32 or BF16 in a job of mode BF16, is FP16"},
      {"precision={mode: FP16, rules: [{match: '*', dtype: FP8}]}",
       "precision.rules[0].dtype: must be FP32 or TF32 or BF16 or FP16 in a job of mode FP16, is FP8"},
      {"precision={mode: FP16, rules: [{match: '*', dtype: BF16}, {match: '*', dtype: TF32}]}", ""},
      {"precision={mode: BF16, rules: [{match: '*', dtype: TF32}]}", ""},
      {"precision={mode: FP8, rules: [{match: '*', dtype: FP8}, {match: '*', dtype: BF16}]}", ""},
      {"precision={mode: TF32}", ""},
  });
}

TEST(ResolveJobSpecTest, RefusesWhatIsNotSupportedYetByName) {
  ExpectViolations({
      {"phases=[{}, {}]",
       "phases[0].name: required\nphases[1].name: required\nphases[1].name: duplicate name ''\n"
       "phases: more than one needs model.networks, are 2"},
      {"phases=[{every: 2}]", "phases[0].every: one phase at least must run in every step"},
  });
}

TEST(ResolveJobSpecTest, ChecksWhereWeightsComeFrom) {
  const std::string sum(64, 'a');
  ExpectViolations({
      {"start_from={path: w.safetensors}", ""},
      {"start_from={path: w.safetensors, allow_missing: true}", ""},
      {"start_from={path: 'upload:" + sum + "'}", ""},
      {"start_from={job_id: 01hq3v7m}", ""},
      {"start_from={job_id: 01hq3v7m, checkpoint: step-000000500}", ""},
      {"start_from={job_id: 01hq3v7m, checkpoint: best}", ""},
      {"start_from={job_id: 01hq3v7m, continue_training: true}", ""},
      {"start_from={path: w.safetensors, continue_training: true}",
       "start_from.continue_training: goes with job_id: a file of weights is no training to go on with"},
      {"start_from={job_id: 01hq3v7m, continue_training: true, allow_missing: true}",
       "start_from.continue_training: is not given with allow_missing: all of a training is taken, or none of it"},
      {"start_from={path: w.safetensors, checkpoint: best}",
       "start_from.checkpoint: goes with job_id: a path names one file"},
      {"start_from={}", "start_from: needs path, a file of weights, or job_id, a job of this server"},
      {"start_from={path: 'upload:" + sum + "a'}",
       "start_from.path: must be \"upload:\" and a SHA-256 of 64 lower-case hex digits, is 'upload:" +
           std::string(53, 'a') + "...' (12 more bytes)"},
      {"start_from={path: 'upload:'}",
       "start_from.path: must be \"upload:\" and a SHA-256 of 64 lower-case hex digits, is 'upload:'"},
      {"start_from={path: w.pt}", "start_from.path: must be a .safetensors file, is 'w.pt'"},
      {"start_from={path: w.safetensors, checkpoint: step-000000500}",
       "start_from.checkpoint: goes with job_id: a path names one file"},
      {"start_from={job_id: 01h}",
       "start_from.job_id: must be a job's id, or a prefix of one of at least 4 characters, is '01h'"},
      {"start_from={job_id: ../../etc}",
       "start_from.job_id: must be a job's id, or a prefix of one of at least 4 characters, is '../../etc'"},
      {"start_from={job_id: 01hq3v7m, checkpoint: ../step-1}",
       "start_from.checkpoint: must be a checkpoint's name, such as step-000000500, or best, is '../step-1'"},
  });
}

TEST(ResolveJobSpecTest, TiedWeights) {
  const auto violated = [](const std::string& dense) {
    v1::JobSpec spec;
    const std::string yaml =
        absl::StrCat("model: {layers: [{name: table, embedding: {vocabulary: 7, features: 4}}, {name: head, dense: {",
                     dense, "}}], loss: {softmax_cross_entropy: {}}}\ndata: {train: {glyphs: {}}}\n");
    EXPECT_EQ(ParseYaml(yaml, "f", &spec), absl::OkStatus()) << yaml;
    return Violated(spec);
  };
  EXPECT_EQ(violated("units: 7, weight_of: table"), "");
  EXPECT_EQ(violated("units: 7, weight_of: tabel"),
            "model.layers[1].dense.weight_of: no earlier embedding layer is named 'tabel'; did you mean table?");
  EXPECT_EQ(violated("units: 7, weight_of: head"),
            "model.layers[1].dense.weight_of: no earlier embedding layer is named 'head'");
  EXPECT_EQ(violated("units: 7, weight_of: table, init: {normal: 1}"),
            "model.layers[1].dense.init: goes to the embedding that weight_of names");
  EXPECT_EQ(violated("weight_of: table, units: 8"),
            "model.layers[1].dense.units: must be 7, the vocabulary of table, is 8");
}

TEST(ResolveJobSpecTest, ChecksNamesAndReferences) {
  ExpectViolations({
      {"name='a/b'", "name: may hold letters, digits, '_', '-', '.' and spaces only, is 'a/b'"},
      {"name=" + std::string(201, 'a'), "name: must be at most 200 bytes, is 201"},
      {"model.layers[1].name=conv2d_0", "model.layers[1].name: duplicate name 'conv2d_0'"},
      {"model.layers[1].name=input", "model.layers[1].name: 'input' stands for the batch; a layer needs another name"},
      {"model.layers[1].name='a b'", "model.layers[1].name: may hold letters, digits, '_', '-' and '.' only, is 'a b'"},
      {"model.layers[2].inputs=[conv2d_1]",
       "model.layers[2].inputs[0]: no earlier layer is named 'conv2d_1'; did you mean conv2d_0?"},
      {"model.layers[2].inputs=[flatten_2]", "model.layers[2].inputs[0]: no earlier layer is named 'flatten_2'"},
      {"model.layers[2].inputs=[dense_3]", "model.layers[2].inputs[0]: no earlier layer is named 'dense_3'"},
      {"model.layers[0].conv2d.init={}",
       "model.layers[0].conv2d.init: needs one of normal, uniform, he_fan_out, he_fan_in"},
      {"model.layers[0].conv2d.init={normal: 0}", "model.layers[0].conv2d.init.normal: must be in (0, 100], is 0"},
      {"model.layers[3].dense.init={uniform: 101}", "model.layers[3].dense.init.uniform: must be in (0, 100], is 101"},
      {"model.layers[3].dense.init={he_fan_in: false}",
       "model.layers[3].dense.init.he_fan_in: must be true, or left out"},
      {"model.layers[2].inputs=[input, conv2d_0]", "model.layers[2].inputs: flatten takes one, has 2"},
      {"model.layers[1]={add: {}}", "model.layers[1].inputs: add needs two or more, has 0"},
      {"model.layers[1]={name: x}",
       "model.layers[1]: needs a kind, one of "
       "dense, conv2d, batch_norm, relu, leaky_relu, elu, gelu, silu, sigmoid, tanh, softplus, max_pool, avg_pool, "
       "global_avg_pool, flatten, dropout, add, mul, concat, reshape, transpose, slice, embedding, "
       "positional_embedding, "
       "conv_transpose2d, layer_norm, group_norm, instance_norm, rms_norm, multi_head_attention, lstm, gru"},
      {"model.layers[1]={mul: {}}", "model.layers[1].inputs: mul needs two or more, has 0"},
      {"model.layers[1]={inputs: [input, input], concat: {axis: 0}}",
       "model.layers[1].concat.axis: 0 is the batch, which cannot be joined"},
      {"model.layers[1]={elu: {alpha: 2e6}}", "model.layers[1].elu.alpha: must be in [-1e+06, 1e+06], is 2e+06"},
      {"model.layers[1]={reshape: {}}", "model.layers[1].reshape.shape: must be one to three numbers, are 0"},
      {"model.layers[1]={reshape: {shape: [-1, -1]}}", "model.layers[1].reshape.shape: only one extent may be -1"},
      {"model.layers[1]={reshape: {shape: [0]}}", "model.layers[1].reshape.shape[0]: must be at least 1, is 0"},
      {"model.layers[1]={embedding: {features: 3}}", "model.layers[1].embedding.vocabulary: required, at least 1"},
      {"model.layers=[]", "model.layers: required, at least one layer"},
      {"model.loss=null",
       "model.loss: required, one of softmax_cross_entropy, mean_squared_error, sigmoid_cross_entropy, l1, smooth_l1, "
       "hinge, ctc, multibox"},
      {"model.loss={softmax_cross_entropy: {label_smoothing: 2}}",
       "model.loss.softmax_cross_entropy.label_smoothing: must be in [0, 1], is 2"},
      {"model.loss={softmax_cross_entropy: {class_weights: [1, -1]}}",
       "model.loss.softmax_cross_entropy.class_weights[1]: must be in [0, 1e+06], is -1"},
      {"model.loss={sigmoid_cross_entropy: {pos_weight: [0]}}",
       "model.loss.sigmoid_cross_entropy.pos_weight: must not all be 0"},
      {"model.loss={smooth_l1: {beta: -1}}", "model.loss.smooth_l1.beta: must be in [0, 1e+06], is -1"},
      {"model.loss={hinge: {margin: -1}}", "model.loss.hinge.margin: must be in [0, 1e+06], is -1"},
      {"model.layers[1]={lstm: {layers: 3}}", "model.layers[1].lstm.units: required, at least 1"},
      {"model.layers[1]={gru: {units: 2, layers: 65}}", "model.layers[1].gru.layers: must be at most 64, is 65"},
      {"model.layers[1]={gru: {units: 2, dropout: 1}}", "model.layers[1].gru.dropout: must be in [0, 1), is 1"},
      {"model.loss={}",
       "model.loss: required, one of softmax_cross_entropy, mean_squared_error, sigmoid_cross_entropy, l1, smooth_l1, "
       "hinge, ctc, multibox"},
      {"data.train=null",
       "data.train: required, one of idx, cifar10, npy, glyphs, image_folder, quickdraw, csv, text, tokens, "
       "safetensors, wav_folder"},
      {"data.train={}",
       "data.train: needs a source, one of idx, cifar10, npy, glyphs, image_folder, quickdraw, csv, text, tokens, "
       "safetensors, wav_folder"},
      {"data.eval={}",
       "data.eval: needs a source, one of idx, cifar10, npy, glyphs, image_folder, quickdraw, csv, text, tokens, "
       "safetensors, wav_folder"},
      {"data.train={idx: {images: a}}", "data.train.idx.labels: required"},
      {"data.train={cifar10: {}}", "data.train.cifar10.paths: required, at least one file"},
      {"data.train={cifar10: {paths: ['']}}", "data.train.cifar10.paths[0]: required"},
      {"data.train={npy: {inputs: a.npy}}", "data.train.npy.targets: required unless inputs is an .npz"},
      {"data.train={npy: {inputs: \"a\\tb\", targets: b}}",
       "data.train.npy.inputs: must not hold control characters, is 'a\\tb'"},
      {"data.train={text: {path: a}}", "data.train.text.sequence_length: required, at least 1"},
      {"data.train={text: {path: a, sequence_length: 8, begin: 0.5, end: 0.25, stride: 0}}",
       "data.train.text.stride: must be at least 1, is 0\ndata.train.text.end: must be above begin 0.5, is 0.25"},
      {"data.train={text: {sequence_length: 2000000, begin: -1}}",
       "data.train.text.path: required\ndata.train.text.sequence_length: must be at most 1048576, is 2000000\n"
       "data.train.text.begin: must be in [0, 1), is -1"},
      {"data.train={tokens: {path: a, sequence_length: 8}}", "data.train.tokens.vocabulary: required, at least 1"},
      {"data.train={tokens: {path: a, sequence_length: 8, vocabulary: 65537}}",
       "data.train.tokens.vocabulary: must be at most 65536, is 65537"},
      {"model.layers[1]={dense: {units: 4, weight_of: conv2d_0}}",
       "model.layers[1].dense.weight_of: no earlier embedding layer is named 'conv2d_0'"},
      {"data.train={wav_folder: {path: a}}",
       "data.train.wav_folder: needs exactly one of transcripts and transcript_by_prefix"},
      {"data.train={wav_folder: {transcripts: a, transcript_by_prefix: {b: c}, include: ['']}}",
       "data.train.wav_folder.path: required\ndata.train.wav_folder.include[0]: required\n"
       "data.train.wav_folder: needs exactly one of transcripts and transcript_by_prefix"},
      {"data.train={wav_folder: {path: a, transcripts: b, log_mel: {mels: 513, hop_seconds: 0, high_hz: 10}}}",
       "data.train.wav_folder.log_mel.mels: must be at most 512, is 513\n"
       "data.train.wav_folder.log_mel.hop_seconds: must be in (0, 60], is 0\n"
       "data.train.wav_folder.log_mel.high_hz: must be in (20, 1e+06], is 10"},
      {"data={train: {wav_folder: {path: a, transcripts: b}}, eval: {wav_folder: {path: a, transcripts: b, alphabet: "
       "ab, log_mel: {mels: 20}}}}",
       "data.eval.wav_folder.alphabet: must be that of data.train\ndata.eval.wav_folder.log_mel: must be that of "
       "data.train"},
      {"model.loss={ctc: {beam_width: 257}}", "model.loss.ctc.beam_width: must be at most 256, is 257"},
      {"labels.a=" + std::string(201, 'x'), "labels.a: must be at most 200 bytes, is 201"},
  });
}

TEST(ResolveJobSpecTest, ReportsEveryViolation) {
  EXPECT_EQ(Violated(v1::JobSpec()),
            "model.loss: required, one of softmax_cross_entropy, mean_squared_error, sigmoid_cross_entropy, l1, "
            "smooth_l1, hinge, ctc, multibox\n"
            "model.layers: required, at least one layer\n"
            "data.train: required, one of idx, cifar10, npy, glyphs, image_folder, quickdraw, csv, text, tokens, "
            "safetensors, wav_folder");
}

TEST(ResolveJobSpecTest, BoundsHostileSpecs) {
  v1::JobSpec spec = Minimal();
  for (int i = 0; i < 10001; ++i) spec.mutable_model()->add_layers()->mutable_relu();
  EXPECT_EQ(Violated(spec), "model.layers: must be at most 10000, are 10005");
  spec = Minimal();
  for (int i = 0; i < 9000; ++i) {
    spec.mutable_model()->add_layers()->add_inputs(absl::StrCat("nowhere", std::string(40, 'x'), i));
  }
  EXPECT_EQ(FieldViolationsOf(ResolveJobSpec(spec).status()).size(), 200);
  spec = Minimal();
  for (int i = 0; i < 65; ++i) (*spec.mutable_labels())[absl::StrCat(i)] = "x";
  EXPECT_EQ(Violated(spec), "labels: must be at most 64, are 65");
}

TEST(ResolveJobSpecTest, RefusesFieldsAndValuesOfAnotherVersion) {
  v1::JobSpec spec = Minimal();
  spec.mutable_train()->GetReflection()->MutableUnknownFields(spec.mutable_train())->AddVarint(99, 1);
  spec.mutable_precision()->set_mode(static_cast<v1::PrecisionSpec::Mode>(42));
  EXPECT_EQ(Violated(spec),
            "precision.mode: no such value: 42\n"
            "train: field number 99 is not known to this version");
}

TEST(InvalidFieldsTest, CarriesBadRequestDetails) {
  const absl::Status status = InvalidFields({{"a.b", "is wrong"}, {"", "all is wrong"}});
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status.message(), "a.b: is wrong; all is wrong");
  const auto payload = status.GetPayload("type.googleapis.com/google.rpc.BadRequest");
  ASSERT_TRUE(payload.has_value());
  google::rpc::BadRequest details;
  ASSERT_TRUE(details.ParseFromString(std::string(*payload)));
  EXPECT_EQ(details.field_violations(0).field(), "a.b");
  EXPECT_EQ(FieldViolationsOf(status).size(), 2);
  EXPECT_TRUE(FieldViolationsOf(absl::OkStatus()).empty());
  EXPECT_TRUE(FieldViolationsOf(absl::InvalidArgumentError("x")).empty());
}

TEST(InvalidFieldsTest, BoundsWhatIsQuoted) {
  const absl::Status status = InvalidFields({{std::string(5000, 'f'), std::string(5000, 'd')}});
  const std::vector<FieldViolation> violations = FieldViolationsOf(status);
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_EQ(violations[0].field, std::string(300, 'f') + "... (4700 more bytes)");
  EXPECT_EQ(violations[0].description, std::string(1000, 'd') + "... (4000 more bytes)");
  EXPECT_EQ(status.message(), violations[0].field + ": " + violations[0].description);
}

}  // namespace
}  // namespace ampd
