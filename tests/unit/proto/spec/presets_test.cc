#include "proto/spec/presets.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "proto/spec/resolve.h"
#include "proto/spec/text.h"
#include "proto/spec/yaml.h"

namespace ampd {
namespace {

v1::JobSpec Parse(const std::string& yaml) {
  v1::JobSpec spec;
  EXPECT_EQ(ParseYaml(absl::StrCat(yaml, "\ndata: {train: {glyphs: {}}}"), "f", &spec), absl::OkStatus());
  return spec;
}

v1::JobSpec Resolved(const std::string& yaml) {
  const absl::StatusOr<ResolvedJobSpec> resolved = ResolveJobSpec(Parse(yaml));
  EXPECT_TRUE(resolved.ok()) << yaml << ": " << resolved.status();
  return resolved.ok() ? resolved->proto() : v1::JobSpec();
}

std::string Violated(const std::string& yaml) {
  const absl::StatusOr<ResolvedJobSpec> resolved = ResolveJobSpec(Parse(yaml));
  if (resolved.ok()) return "";
  return absl::StrJoin(FieldViolationsOf(resolved.status()), "\n", [](std::string* out, const FieldViolation& v) {
    absl::StrAppend(out, v.field, ": ", v.description);
  });
}

// Presets that stand for layers, one of each family at least.
const std::vector<std::string>& Families() {
  static const auto* const families =
      new std::vector<std::string>{"mlp: {}",
                                   "convnet: {}",
                                   "resnet: {depth: 20}",
                                   "resnet: {depth: 50}",
                                   "unet: {}",
                                   "gpt2: {layers: 2}",
                                   "speech: {}",
                                   "ssd: {classes: 3, size: 64}",
                                   "speech: {recurrent: GRU, units: 32, layers: 1, dropout: 0}"};
  return *families;
}

TEST(PresetsTest, ArePutInTheirPlaceOnce) {
  for (const std::string& family : Families()) {
    const v1::JobSpec spec = Resolved(absl::StrCat("model: {preset: {", family, "}}"));
    EXPECT_FALSE(spec.model().has_preset()) << family;
    EXPECT_EQ(spec.model().made_from(), family.substr(0, family.find(':')));
    EXPECT_GT(spec.model().layers_size(), 0) << family;
    EXPECT_TRUE(spec.model().has_loss()) << family;
    const absl::StatusOr<ResolvedJobSpec> again = ResolveJobSpec(spec);
    ASSERT_TRUE(again.ok()) << family << ": " << again.status();
    EXPECT_EQ(ToYaml(again->proto()), ToYaml(spec)) << family;
  }
}

const v1::Layer& LayerOf(const v1::JobSpec& spec, const std::string& name) {
  for (const v1::Layer& layer : spec.model().layers()) {
    if (layer.name() == name) return layer;
  }
  ADD_FAILURE() << "no layer " << name;
  return v1::Layer::default_instance();
}

TEST(PresetsTest, Gpt2IsTiedAndStartsSmall) {
  const v1::JobSpec spec = Resolved("model: {preset: {gpt2: {layers: 8, heads: 4, features: 64, positions: 32}}}");
  EXPECT_EQ(spec.model().layers_size(), 3 + 8 * 9 + 2);
  EXPECT_EQ(LayerOf(spec, "wte").embedding().vocabulary(), 50257);
  EXPECT_EQ(LayerOf(spec, "wte").embedding().init().normal(), 0.02);
  EXPECT_EQ(LayerOf(spec, "wpe").positional_embedding().positions(), 32);
  EXPECT_EQ(LayerOf(spec, "wpe").positional_embedding().deviation(), 0.02);
  const v1::MultiHeadAttentionLayer& attention = LayerOf(spec, "h.7.attn").multi_head_attention();
  EXPECT_TRUE(attention.causal());
  EXPECT_EQ(attention.heads(), 4);
  EXPECT_EQ(attention.init().normal(), 0.02);
  EXPECT_DOUBLE_EQ(attention.out_init().normal(), 0.005);
  EXPECT_DOUBLE_EQ(LayerOf(spec, "h.0.mlp.c_proj").dense().init().normal(), 0.005);
  EXPECT_EQ(LayerOf(spec, "h.0.mlp.c_fc").dense().units(), 256);
  EXPECT_EQ(LayerOf(spec, "h.0.mlp.c_fc").dense().activation(), v1::Activation::GELU_TANH);
  EXPECT_EQ(absl::StrJoin(LayerOf(spec, "h.0.add_1").inputs(), " "), "drop h.0.resid_dropout");
  EXPECT_EQ(absl::StrJoin(LayerOf(spec, "h.0.add_2").inputs(), " "), "h.0.add_1 h.0.mlp.dropout");
  EXPECT_EQ(absl::StrJoin(LayerOf(spec, "h.1.add_1").inputs(), " "), "h.0.add_2 h.1.resid_dropout");
  EXPECT_EQ(LayerOf(spec, "drop").dropout().rate(), 0.1);
  const v1::DenseLayer& head = spec.model().layers().rbegin()->dense();
  EXPECT_EQ(head.units(), 50257);
  EXPECT_EQ(head.weight_of(), "wte");
  EXPECT_FALSE(head.bias());
  EXPECT_TRUE(spec.model().loss().has_softmax_cross_entropy());
}

TEST(PresetsTest, Gpt2ReadsBytesWhereTheDataIsText) {
  v1::JobSpec spec = Parse("model: {preset: {gpt2: {layers: 1, dropout: 0}}}");
  v1::TextDataset* text = spec.mutable_data()->mutable_train()->mutable_text();
  text->set_path("a");
  text->set_sequence_length(8);
  const absl::StatusOr<ResolvedJobSpec> resolved = ResolveJobSpec(spec);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(LayerOf(resolved->proto(), "wte").embedding().vocabulary(), 256);
  for (const v1::Layer& layer : resolved->proto().model().layers()) EXPECT_FALSE(layer.has_dropout()) << layer.name();
}

TEST(PresetsTest, Gpt2RefusesWhatDoesNotFit) {
  EXPECT_EQ(Violated("model: {preset: {gpt2: {heads: 5, features: 12, dropout: 1, layers: 0}}}"),
            "model.preset.gpt2.layers: must be at least 1, is 0\n"
            "model.preset.gpt2.dropout: must be in [0, 1), is 1\n"
            "model.preset.gpt2.heads: must divide features 12, is 5");
  EXPECT_EQ(Violated("model: {preset: {gpt2: {heads: 0, vocabulary: -1, positions: 2000000, features: 1000000}}}"),
            "model.preset.gpt2.vocabulary: must be at least 1, is -1\n"
            "model.preset.gpt2.positions: must be at most 1048576, is 2000000\n"
            "model.preset.gpt2.heads: must be at least 1, is 0\n"
            "model.preset.gpt2.features: must be at most 65536, is 1000000");
}

TEST(PresetsTest, AcganIsNetworksAndPhases) {
  const v1::JobSpec spec = Resolved("model: {preset: {acgan: {size: 32, channels: 3, classes: 7, width: 8}}}");
  EXPECT_EQ(spec.model().made_from(), "acgan");
  std::vector<std::string> networks;
  for (const v1::Network& network : spec.model().networks()) networks.push_back(network.name());
  EXPECT_EQ(networks, (std::vector<std::string>{"generator", "trunk", "source", "class"}));
  ASSERT_EQ(spec.phases_size(), 2);
  for (const v1::PhaseSpec& phase : spec.phases()) {
    EXPECT_EQ(phase.optimizer().adam().beta1(), 0.5);
    EXPECT_EQ(phase.optimizer().adam().learning_rate(), 0.0002);
  }
  EXPECT_EQ(spec.report().samples().images().rows(), 7);
  EXPECT_EQ(spec.report().samples().every_steps(), 500);
  // The class reaches an image through the noise alone, and what judges has no statistics of batches.
  const auto with = [&spec](int network, auto has) {
    const auto& layers = spec.model().networks(network).layers();
    return std::count_if(layers.begin(), layers.end(), has);
  };
  EXPECT_EQ(with(0, [](const v1::Layer& layer) { return layer.has_mul(); }), 1);
  EXPECT_EQ(with(0, [](const v1::Layer& layer) { return layer.has_concat(); }), 0);
  EXPECT_EQ(with(1, [](const v1::Layer& layer) { return layer.has_batch_norm(); }), 0);
  const absl::StatusOr<ResolvedJobSpec> again = ResolveJobSpec(spec);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ToYaml(again->proto()), ToYaml(spec));
}

TEST(PresetsTest, AcganLeavesReportsToTheUser) {
  const v1::JobSpec spec = Resolved(
      "model: {preset: {acgan: {}}}\nreport: {samples: {every_steps: 7, images: {network: generator, rows: 2}}}");
  EXPECT_EQ(spec.report().samples().every_steps(), 7);
  EXPECT_EQ(spec.report().samples().images().rows(), 2);
  EXPECT_EQ(spec.report().samples().images().low(), -1);
}

TEST(PresetsTest, AcganRefusesWhatItWouldPassOver) {
  EXPECT_EQ(Violated("model: {preset: {acgan: {}}}\noptimizer: {adam: {learning_rate: 1}}"),
            "optimizer: the phases of acgan have their own: give model.preset.acgan.generator_learning_rate and "
            "discriminator_learning_rate");
  EXPECT_EQ(Violated("model: {preset: {acgan: {}}}\noptimizer: {ema: {samples: true}}"), "");
  EXPECT_EQ(Violated("model: {preset: {acgan: {}}, loss: {hinge: {}}}\nphases: [{name: a}]"),
            "phases: cannot be given with preset acgan, which has its own\n"
            "model.loss: cannot be given with preset acgan, which has its own");
}

TEST(PresetsTest, TakeAnotherLoss) {
  const v1::JobSpec spec =
      Resolved("model: {preset: {convnet: {}}, loss: {softmax_cross_entropy: {label_smoothing: 0.1}}}");
  EXPECT_EQ(spec.model().loss().softmax_cross_entropy().label_smoothing(), 0.1);
}

TEST(PresetsTest, HaveLayersThatRulesName) {
  EXPECT_EQ(Violated("model: {preset: {convnet: {}}}\nprecision: {mode: FP16, rules: [{match: head, dtype: FP32}]}"),
            "");
  EXPECT_NE(Violated("model: {preset: {convnet: {}}}\nprecision: {mode: FP16, rules: [{match: hed, dtype: FP32}]}"),
            "");
}

TEST(PresetsTest, StandAlone) {
  EXPECT_EQ(Violated("model: {preset: {mlp: {}}, layers: [{dense: {units: 1}}]}"),
            "model.layers: cannot be given with preset");
  EXPECT_EQ(Violated("model: {preset: {mlp: {}}, networks: [{name: a, layers: [{dense: {units: 1}}]}]}"),
            "model.networks: cannot be given with preset");
  EXPECT_EQ(Violated("model: {preset: {}}"),
            "model.preset: required, one of mlp, convnet, acgan, resnet, gpt2, speech, unet, ssd");
}

TEST(PresetsTest, NameTheirFields) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"mlp: {hidden: [0]}", "model.preset.mlp.hidden[0]: must be at least 1, is 0"},
      {"mlp: {outputs: -1}", "model.preset.mlp.outputs: must be at least 1, is -1"},
      {"acgan: {size: 30}", "model.preset.acgan.size: must be a multiple of 4, is 30"},
      {"acgan: {size: 0}", "model.preset.acgan.size: must be at least 1, is 0"},
      {"acgan: {channels: 2}", "model.preset.acgan.channels: must be 1 or 3, are 2"},
      {"acgan: {classes: 0}", "model.preset.acgan.classes: must be at least 1, is 0"},
      {"acgan: {width: 1000000000000}", "model.preset.acgan.width: must be at most 262144, is 1000000000000"},
      {"acgan: {class_weight: -1}", "model.preset.acgan.class_weight: must be in [0, 1e+06], is -1"},
      {"convnet: {filters: [1]}",
       "model.preset.convnet.kernels: must be as many as filters, which are 1, and at most 40, are 3"},
      {"resnet: {}",
       "model.preset.resnet.depth: required, one of 20, 32, 44, 56, 110 for small images and 18, 34, 50, 101, 152 for "
       "large ones"},
      {"resnet: {depth: 21}",
       "model.preset.resnet.depth: must be one of 20, 32, 44, 56, 110 for small images and 18, 34, 50, 101, 152 for "
       "large ones, is 21"},
      {"resnet: {depth: 110, width: 0}", "model.preset.resnet.width: must be at least 1, is 0"},
      {"resnet: {depth: 110, classes: 0}", "model.preset.resnet.classes: must be at least 1, is 0"},
      {"unet: {depth: 9}", "model.preset.unet.depth: must be at most 8, is 9"},
      {"unet: {width: 5000}", "model.preset.unet.width: must be at most 4096, is 5000"},
      {"unet: {classes: 1}", "model.preset.unet.classes: must be at least 2, is 1"},
      {"convnet: {kernels: [5, 7, 1025]}", "model.preset.convnet.kernels[2]: must be at most 1024, is 1025"},
  };
  for (const auto& [family, violation] : cases) {
    EXPECT_EQ(Violated(absl::StrCat("model: {preset: {", family, "}}")), violation);
  }
  EXPECT_EQ(Violated("model: {preset: {mlp: {loss: {l1: {}}}}, loss: {l1: {}}}"),
            "model.preset.mlp.loss: model.loss is given too: give one of them");
}

TEST(PresetsTest, GivePerceptronsTheLossOfTheirOutputs) {
  EXPECT_TRUE(Resolved("model: {preset: {mlp: {}}}").model().loss().has_mean_squared_error());
  EXPECT_TRUE(Resolved("model: {preset: {mlp: {outputs: 3}}}").model().loss().has_softmax_cross_entropy());
  EXPECT_TRUE(Resolved("model: {preset: {mlp: {loss: {l1: {}}}}}").model().loss().has_l1());
}

}  // namespace
}  // namespace ampd
