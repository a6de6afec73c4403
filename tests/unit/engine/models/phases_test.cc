// Graphs of phases over shared networks.
#include <algorithm>
#include <set>

#include "engine/models/model.h"
#include "engine/ops/op_def.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace ampd::models {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const SampleInfo kImages{.input_shape = {4, 4, 1}, .classes = 3};

const std::string kNetworks =
    "model { networks { name: 'g' layers { name: 'fc' dense { units: 16 } } layers { name: 'drop' dropout { rate: 0.5 "
    "} }"
    "          layers { name: 'shape' reshape { shape: [ 4, 4, 1 ] } } layers { name: 'bn' batch_norm {} } }"
    "        networks { name: 'd' layers { name: 'flat' flatten {} } layers { name: 'fc' dense { units: 1 } } }"
    "        noise { name: 'z' shape: 5 } } data { train { glyphs {} } } ";
const std::string kCritic =
    "phases { name: 'critic' trains: 'd' calls { name: 'fake' network: 'g' inputs: 'z' }"
    "  calls { name: 'on_real' network: 'd' inputs: 'data' } calls { name: 'on_fake' network: 'd' inputs: 'fake' }"
    "  losses { input: 'on_real' loss { sigmoid_cross_entropy {} } target: 1 }"
    "  losses { input: 'on_fake' loss { sigmoid_cross_entropy {} } target: 0 } } ";
const std::string kArtist =
    "phases { name: 'artist' trains: 'g' calls { name: 'fake' network: 'g' inputs: 'z' }"
    "  calls { name: 'on_fake' network: 'd' inputs: 'fake' }"
    "  losses { input: 'on_fake' loss { sigmoid_cross_entropy {} } target: 1 } } ";

absl::StatusOr<Model> Build(const std::string& text, const SampleInfo& sample = kImages) {
  v1::JobSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec)) << text;
  auto resolved = ResolveJobSpec(spec);
  if (!resolved.ok()) return resolved.status();
  return BuildModel(*resolved, sample, 8, 8);
}

std::set<std::string> Accumulated(const ir::Graph& graph) {
  std::set<std::string> names;
  for (const ir::Node& node : graph.nodes) {
    if (node.op == ir::OpKind::kAccumulateGrad) names.insert(graph.values[node.inputs[1]].name);
  }
  return names;
}

TEST(PhaseGraphs, ShareParametersAndTrainTheirOwn) {
  for (const char* mode : {"FP32", "FP16", "FP8"}) {
    const auto model = Build(kNetworks + kCritic + kArtist + "precision { mode: " + mode + " }");
    ASSERT_TRUE(model.ok()) << model.status();
    ASSERT_EQ(model->phases.size(), 2u);
    std::vector<std::string> names;
    for (const PhaseGraph& phase : model->phases) {
      EXPECT_TRUE(ops::VerifyGraph(phase.train).ok()) << ops::VerifyGraph(phase.train);
      names.clear();
      for (const ir::Persistent& p : phase.train.parameters) names.push_back(p.name);
      EXPECT_THAT(names,
                  ElementsAre("g.fc.weight", "g.fc.bias", "g.bn.weight", "g.bn.bias", "d.fc.weight", "d.fc.bias"));
      EXPECT_EQ(phase.train.states.size(), model->phases[0].train.states.size());
    }
    EXPECT_THAT(model->phases[0].trains, ElementsAre(false, false, false, false, true, true));
    EXPECT_THAT(model->phases[1].trains, ElementsAre(true, true, true, true, false, false));
    EXPECT_THAT(Accumulated(model->phases[0].train), ElementsAre("d.fc.bias", "d.fc.weight"));
    EXPECT_THAT(Accumulated(model->phases[1].train),
                ElementsAre("g.bn.bias", "g.bn.weight", "g.fc.bias", "g.fc.weight"));
    EXPECT_TRUE(model->eval.nodes.empty());
  }
}

TEST(PhaseGraphs, NamesSayPhaseCallAndLayer) {
  const auto model = Build(kNetworks + kCritic + kArtist);
  ASSERT_TRUE(model.ok()) << model.status();
  std::set<std::string> names;
  std::set<int64_t> dropout_streams, noise_streams;
  for (const PhaseGraph& phase : model->phases) {
    for (const ir::Node& node : phase.train.nodes) {
      names.insert(node.name + " of " + node.layer);
      if (node.stage != ir::Stage::kForward) continue;
      if (node.op == ir::OpKind::kDropout) dropout_streams.insert(node.attributes.Int("stream"));
      if (node.op == ir::OpKind::kRandomNormal) noise_streams.insert(node.attributes.Int("stream"));
    }
  }
  for (const char* name : {"critic.on_real.fc.matmul of d.fc", "critic.on_fake.fc.matmul of d.fc",
                           "artist.on_fake.fc.matmul of d.fc", "artist.fake.bn.batch_norm of g.bn"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
  EXPECT_EQ(dropout_streams.size(), 2u) << "each call drops its own";
  EXPECT_EQ(noise_streams.size(), 1u) << "both phases read the same noise";
}

TEST(PhaseGraphs, LayersAreDescribedByNetwork) {
  const auto model = Build(kNetworks + kCritic + kArtist + "precision { mode: FP16 rules { match: 'd.*' } }");
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ(model->layers.size(), 6u);
  EXPECT_EQ(model->layers[0].ShortDebugString(),
            "name: \"g.fc\" kind: \"dense\" dtype: \"f16\" output_shape: 16 parameters: 96");
  EXPECT_EQ(model->layers[5].ShortDebugString(),
            "name: \"d.fc\" kind: \"dense\" dtype: \"f32\" output_shape: 1 parameters: 17");
}

// An auxiliary classifier (Odena et al. 2017): noise and labels in, two heads on one trunk out, class and source
// losses.
TEST(PhaseGraphs, SeveralInputsHeadsAndLabels) {
  const auto model = Build(
      "data { train { glyphs {} } }"
      "model { networks { name: 'g' inputs: 'z' inputs: 'label' layers { name: 'table' embedding { vocabulary: 3 "
      "features: 5 } inputs: 'label' }"
      "    layers { name: 'both' mul {} inputs: 'z' inputs: 'table' } layers { name: 'fc' dense { units: 16 } } }"
      "  networks { name: 'trunk' layers { name: 'flat' flatten {} } layers { name: 'fc' dense { units: 8 activation: "
      "RELU } } }"
      "  networks { name: 'source' layers { name: 'fc' dense { units: 1 } } }"
      "  networks { name: 'class' layers { name: 'fc' dense { units: 3 } } } noise { name: 'z' shape: 5 } }"
      "phases { name: 'd' trains: 'trunk' trains: 'source' trains: 'class'"
      "  calls { name: 'fake' network: 'g' inputs: 'z' inputs: 'labels' }"
      "  calls { name: 'a' network: 'trunk' inputs: 'data' } calls { name: 'b' network: 'trunk' inputs: 'fake' }"
      "  calls { name: 'real_a' network: 'source' inputs: 'a' } calls { name: 'real_b' network: 'source' inputs: 'b' }"
      "  calls { name: 'class_a' network: 'class' inputs: 'a' }"
      "  losses { input: 'real_a' loss { hinge {} } target: 1 } losses { input: 'real_b' loss { hinge {} } target: -1 }"
      "  losses { input: 'class_a' loss { softmax_cross_entropy { label_smoothing: 0.1 } } weight: 0.5 } }"
      "phases { name: 'g' trains: 'g' calls { name: 'fake' network: 'g' inputs: 'z' inputs: 'labels' }"
      "  calls { name: 'b' network: 'trunk' inputs: 'fake' } calls { name: 'class_b' network: 'class' inputs: 'b' }"
      "  losses { input: 'class_b' loss { softmax_cross_entropy {} } } losses { input: 'fake' loss { l1 {} } "
      "target_from: 'fake' } }");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(Accumulated(model->phases[1].train), ElementsAre("g.fc.bias", "g.fc.weight", "g.table.weight"));
  EXPECT_GE(model->phases[0].train.FindInput("labels"), 0);
  EXPECT_LT(model->phases[1].train.FindInput("x"), 0);
}

TEST(PhaseGraphs, WhatDoesNotFitIsToldByField) {
  struct Mistake {
    std::string text, field, message;
    SampleInfo sample = kImages;
  };
  const std::string tail =
      " calls { name: 'o' network: 'd' inputs: 'data' } losses { input: 'o' loss { l1 {} } target: 1 } }";
  const std::string g =
      "phases { name: 'u' trains: 'g' calls { network: 'g' inputs: 'z' } losses { input: 'g' loss { l1 {} } target: 1 "
      "} }";
  const SampleInfo floats{.input_shape = {4, 4, 1}, .target_features = 2}, rows{.input_shape = {3, 4}, .classes = 3};
  const std::vector<Mistake> mistakes = {
      {kNetworks + g + "phases { name: 'x' trains: 'd.fx.*'" + tail, "phases[1].trains[0]",
       "no parameter of the networks that the phase calls matches 'd.fx.*'"},
      {kNetworks + g +
           "phases { name: 'x' trains: 'd' calls { network: 'd' inputs: 'data' }"
           " calls { name: 'small' network: 'd' inputs: 'z' } losses { input: 'd' loss { l1 {} } target: 1 } }",
       "phases[1].calls[1]", "d.fc.weight is shared, but is f32[1, 16] in one use and f32[1, 5] in another"},
      {kNetworks + kCritic +
           "phases { name: 'x' trains: 'g' calls { name: 'f' network: 'g' inputs: 'z' }"
           " calls { network: 'd' inputs: 'data' } losses { input: 'd' loss { l1 {} } target: 1 } }",
       "phases[1].losses", "there is nothing to train"},
      {kNetworks + kCritic +
           "phases { name: 'x' trains: 'g' calls { network: 'g' inputs: 'targets' }"
           " losses { input: 'g' loss { l1 {} } target: 1 } }",
       "phases[1].calls[0].inputs[0]", "the data has class labels, no float targets"},
      {kNetworks + kCritic +
           "phases { name: 'x' trains: 'g' calls { network: 'g' inputs: 'labels' }"
           " losses { input: 'g' loss { l1 {} } target: 1 } }",
       "phases[1].calls[0].inputs[0]", "the data has float targets, no class labels", floats},
      {kNetworks + kCritic +
           "phases { name: 'x' trains: 'g' calls { network: 'g' inputs: 'z' }"
           " losses { input: 'g' loss { l1 {} } target_from: 'z' } }",
       "phases[1].losses[0]", "is of [8, 4, 4, 1] against [8, 5]"},
      {kNetworks + kCritic +
           "phases { name: 'x' trains: 'g' calls { network: 'g' inputs: 'data' }"
           " losses { input: 'g' loss { l1 {} } target: 1 } }",
       "model.networks[0].layers[0]", "[dense] needs [batch, features]"},
      // Which would be one weight: networks share by name.
      {"model { networks { name: 'd'"
       "  layers { name: 'a' multi_head_attention { heads: 2 } } layers { name: 'a.out_proj' dense { units: 4 } } } }"
       "data { train { glyphs {} } } phases { name: 'x' trains: 'd'" +
           tail,
       "model.networks[0].layers[1].name",
       "layer a.out_proj would have a parameter a.out_proj.weight, which is layer a's", rows},
  };
  for (const Mistake& m : mistakes) {
    const auto model = Build(m.text, m.sample);
    ASSERT_FALSE(model.ok()) << m.message;
    const std::vector<FieldViolation> violations = FieldViolationsOf(model.status());
    ASSERT_EQ(violations.size(), 1u) << model.status();
    EXPECT_EQ(violations[0].field, m.field) << model.status();
    EXPECT_THAT(violations[0].description, HasSubstr(m.message));
  }
}

// Extents whose products would overflow, and noise that no memory holds, are refused before anything is taken.
TEST(PhaseGraphs, HugeShapesAreRefused) {
  const auto model = Build(
      "data { train { glyphs {} } } model { networks { name: 'g' layers { name: 'fc' dense { units: 1048576 } } }"
      "  noise { name: 'z' shape: [ 1048576, 1048576, 1048576 ] } }"
      "phases { trains: 'g' calls { network: 'g' inputs: 'z' } losses { input: 'g' loss { l1 {} } target: 1 } }");
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("exceed 10^12 elements"));
}

}  // namespace
}  // namespace ampd::models
