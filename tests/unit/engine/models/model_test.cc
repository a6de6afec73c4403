#include "engine/models/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/match.h"
#include "engine/ir/printer.h"
#include "engine/ops/op_def.h"
#include "tests/unit/engine/models/model_test_util.h"

namespace ampd::models {
namespace {

using ::testing::HasSubstr;

const SampleInfo kImages{.input_shape = {8, 6, 3}, .classes = 4};

constexpr char kConvnet[] = R"pb(
  layers {
    name: "stem"
    conv2d { filters: 5 kernel: 3 stride: 2 padding: SAME activation: RELU }
  }
  layers {
    name: "bn"
    batch_norm {}
  }
  layers {
    name: "pool"
    max_pool { size: 2 }
  }
  layers {
    name: "flat"
    flatten {}
  }
  layers {
    name: "drop"
    dropout { rate: 0.5 }
  }
  layers {
    name: "head"
    dense { units: 4 }
  }
  loss { softmax_cross_entropy {} }
)pb";

TEST(BuildModel, ConvnetInEveryMode) {
  for (const char* mode : {"mode: FP32", "mode: FP16", "mode: BF16"}) {
    auto model = BuildModel(Resolve(kConvnet, mode), kImages, 16, 32);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_TRUE(ops::VerifyGraph(model->phases[0].train).ok());
    EXPECT_TRUE(ops::VerifyGraph(model->eval).ok());
    std::vector<std::string> names;
    for (const ir::Persistent& p : model->phases[0].train.parameters) names.push_back(p.name + ir::TypeString(p.type));
    // 8x6 by stride 2: 4x3; pool 2: 2x1, 5 channels.
    EXPECT_THAT(names, ::testing::ElementsAre("stem.weightf32[5, 3, 3, 3]", "stem.biasf32[5]", "bn.weightf32[5]",
                                              "bn.biasf32[5]", "head.weightf32[4, 10]", "head.biasf32[4]"));
    EXPECT_EQ(model->phases[0].train.parameters[4].layout, ir::DiskLayout::kChannelsLast);
    EXPECT_EQ(model->phases[0].train.parameters[4].flattened, (Shape{2, 1, 5}));
    EXPECT_EQ(model->phases[0].train.parameters[0].layout, ir::DiskLayout::kConvFilter);
    EXPECT_EQ(model->phases[0].train.states.size(), 3u);
    for (const char* output : {"loss", "losses"}) EXPECT_TRUE(model->phases[0].train.outputs.count(output)) << output;
    for (const char* output : {"loss", "losses", "correct", "logits"}) {
      ASSERT_TRUE(model->eval.outputs.count(output)) << output;
      EXPECT_EQ(model->eval.type(model->eval.outputs.at(output)).dtype, DType::kF32) << output;
    }
    EXPECT_EQ(model->eval.type(model->eval.outputs.at("losses")).shape, Shape{32});
  }
}

// Kinds and bounds of every parameter of `layers`, by name.
std::map<std::string, std::pair<ir::Initializer::Kind, double>> InitialWeights(const std::string& layers,
                                                                               const SampleInfo& sample) {
  auto model = BuildModel(Resolve(layers + " loss { softmax_cross_entropy {} }"), sample, 4, 4);
  EXPECT_TRUE(model.ok()) << model.status();
  std::map<std::string, std::pair<ir::Initializer::Kind, double>> weights;
  if (!model.ok()) return weights;
  for (const ir::Persistent& p : model->phases[0].train.parameters) weights[p.name] = {p.init.kind, p.init.bound};
  return weights;
}

// torch.nn.init counts fans from the weight on disk: outputs first, for a transposed convolution its inputs.
TEST(BuildModel, DrawsWeightsAsAskedFor) {
  using Kind = ir::Initializer::Kind;
  auto weights = InitialWeights(
      R"pb(layers {
             name: "a"
             conv2d {
               filters: 10
               kernel: 3
               groups: 1
               init { he_fan_out: true }
             }
           }
           layers {
             name: "b"
             conv2d {
               filters: 4
               kernel: 2
               groups: 2
               init { he_fan_in: true }
             }
           }
           layers {
             name: "c"
             conv_transpose2d {
               filters: 6
               kernel: 2
               init { he_fan_out: true }
             }
           }
           layers {
             name: "n"
             batch_norm { zero_weight: true }
           }
           layers {
             name: "p"
             global_avg_pool {}
           }
           layers {
             name: "d"
             dense {
               units: 8
               init { uniform: 0.25 }
             }
           }
           layers {
             name: "e"
             dense {
               units: 4
               init { normal: 0.02 }
             }
           })pb",
      kImages);
  EXPECT_EQ(weights["a.weight"], std::make_pair(Kind::kNormal, std::sqrt(2.0 / (10 * 9))));
  EXPECT_EQ(weights["b.weight"], std::make_pair(Kind::kNormal, std::sqrt(2.0 / (5 * 4))));
  EXPECT_EQ(weights["c.weight"], std::make_pair(Kind::kNormal, std::sqrt(2.0 / (4 * 4))));
  EXPECT_EQ(weights["n.weight"].first, Kind::kZeros);
  EXPECT_EQ(weights["d.weight"], std::make_pair(Kind::kUniform, 0.25));
  EXPECT_EQ(weights["e.weight"], std::make_pair(Kind::kNormal, 0.02));
  for (const char* bias : {"a.bias", "b.bias", "c.bias", "d.bias", "e.bias"}) {
    EXPECT_EQ(weights[bias].first, Kind::kZeros) << bias << ": a normal weight stands beside no uniform bias";
  }
  weights = InitialWeights(
      R"pb(layers {
             name: "e"
             embedding {
               vocabulary: 7
               features: 8
               init { normal: 0.5 }
             }
           }
           layers {
             name: "m"
             multi_head_attention {
               heads: 2
               init { normal: 0.1 }
               out_init { uniform: 0.3 }
             }
           }
           layers {
             name: "h"
             dense { units: 4 }
           })pb",
      {.input_shape = {5}, .classes = 4, .label_shape = {5}});
  EXPECT_EQ(weights["e.weight"], std::make_pair(Kind::kNormal, 0.5));
  EXPECT_EQ(weights["m.in_proj_weight"], std::make_pair(Kind::kNormal, 0.1));
  EXPECT_EQ(weights["m.out_proj.weight"], std::make_pair(Kind::kUniform, 0.3));
  // Without `init` weights and biases are PyTorch's.
  EXPECT_EQ(weights["h.weight"], std::make_pair(Kind::kUniform, 1 / std::sqrt(8.0)));
  EXPECT_EQ(weights["h.bias"], weights["h.weight"]);
}

// As OpenAI's, and every PyTorch port of it.
TEST(BuildModel, Gpt2BeginsWithBiasesOfZero) {
  const auto model =
      BuildModel(Resolve("preset { gpt2 { vocabulary: 16 positions: 8 layers: 2 heads: 2 features: 8 } }"),
                 {.input_shape = {8}, .classes = 16, .label_shape = {8}}, 4, 4);
  ASSERT_TRUE(model.ok()) << model.status();
  int biases = 0;
  for (const ir::Persistent& p : model->phases[0].train.parameters) {
    if (!absl::EndsWith(p.name, "bias")) continue;
    EXPECT_EQ(p.init.kind, ir::Initializer::Kind::kZeros) << p.name;
    ++biases;
  }
  EXPECT_EQ(biases, 2 * 6 + 1) << "two norms, two of attention and two of the MLP a block, and the last norm";
}

TEST(BuildModel, DescribesLayers) {
  auto model = BuildModel(Resolve(kConvnet, "mode: FP16 rules { match: 'head' dtype: FP32 }"), kImages, 16, 16);
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ(model->layers.size(), 6u);
  EXPECT_EQ(
      model->layers[0].ShortDebugString(),
      "name: \"stem\" kind: \"conv2d\" dtype: \"f16\" output_shape: 4 output_shape: 3 output_shape: 5 parameters: 140");
  EXPECT_EQ(model->layers[5].ShortDebugString(),
            "name: \"head\" kind: \"dense\" dtype: \"f32\" output_shape: 4 parameters: 44");
}

TEST(BuildModel, EvaluationHasNoDropoutAndReadsRunningStatistics) {
  auto model = BuildModel(Resolve(kConvnet), kImages, 16, 16);
  ASSERT_TRUE(model.ok());
  int dropouts = 0, inference = 0;
  for (const ir::Node& node : model->eval.nodes) {
    dropouts += node.op == ir::OpKind::kDropout;
    inference += node.op == ir::OpKind::kBatchNormInference;
    EXPECT_FALSE(ops::GetOpDef(node.op).has_effects) << node.name;
  }
  EXPECT_EQ(dropouts, 0);
  EXPECT_EQ(inference, 1);
}

TEST(BuildModel, ResidualDag) {
  auto model = BuildModel(Resolve(R"pb(
                            layers {
                              name: "a"
                              conv2d { filters: 4 kernel: 3 padding: SAME }
                            }
                            layers {
                              name: "b"
                              conv2d { filters: 4 kernel: 3 padding: SAME }
                              inputs: "a"
                            }
                            layers {
                              name: "sum"
                              add {}
                              inputs: "a"
                              inputs: "b"
                            }
                            layers {
                              name: "gap"
                              global_avg_pool {}
                            }
                            loss { softmax_cross_entropy {} })pb"),
                          kImages, 2, 2);
  ASSERT_TRUE(model.ok()) << model.status();
}

// Ids to vectors, each activation once, a gate and a concatenation.
TEST(BuildModel, ActivationsEmbeddingAndCombinations) {
  auto model = BuildModel(Resolve(R"pb(
                                    layers {
                                      name: "table"
                                      embedding { vocabulary: 11 features: 6 }
                                    }
                                    layers { leaky_relu { negative_slope: 0.2 } }
                                    layers { elu {} }
                                    layers { gelu { tanh: true } }
                                    layers {
                                      name: "a"
                                      silu {}
                                    }
                                    layers {
                                      name: "gate"
                                      sigmoid {}
                                    }
                                    layers {
                                      name: "gated"
                                      mul {}
                                      inputs: "a"
                                      inputs: "gate"
                                    }
                                    layers {
                                      name: "b"
                                      tanh {}
                                    }
                                    layers {
                                      name: "c"
                                      softplus {}
                                      inputs: "gated"
                                    }
                                    layers {
                                      name: "both"
                                      concat {}
                                      inputs: "b"
                                      inputs: "c"
                                    }
                                    layers {
                                      name: "flat"
                                      reshape { shape: -1 }
                                    }
                                    layers {
                                      name: "head"
                                      dense { units: 4 activation: GELU }
                                    }
                                    loss { softmax_cross_entropy {} })pb",
                                  "mode: FP16"),
                          {.input_shape = {5}, .classes = 4}, 2, 2);
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ(model->layers.size(), 12u);
  EXPECT_EQ(model->layers[0].ShortDebugString(),
            "name: \"table\" kind: \"embedding\" dtype: \"f16\" output_shape: 5 output_shape: 6 parameters: 66");
  EXPECT_EQ(model->layers[9].ShortDebugString(),
            "name: \"both\" kind: \"concat\" dtype: \"f16\" output_shape: 5 output_shape: 12");
  EXPECT_EQ(model->phases[0].train.parameters[1].type.shape, (Shape{4, 60}));
  std::map<ir::OpKind, ir::Attributes> seen;
  for (const ir::Node& node : model->phases[0].train.nodes) seen[node.op] = node.attributes;
  EXPECT_EQ(seen[ir::OpKind::kLeakyReluGrad].Double("alpha"), 0.2);
  EXPECT_EQ(seen[ir::OpKind::kEluGrad].Double("alpha"), 1.0);
  EXPECT_EQ(seen.count(ir::OpKind::kEmbeddingGrad), 1u);
}

TEST(BuildModel, SquaredErrorOnClassesReadsOneHotTargetsAndLabels) {
  auto model = BuildModel(Resolve("layers { flatten {} } layers { dense { units: 4 } } loss { mean_squared_error {} }"),
                          kImages, 2, 2);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_GE(model->eval.FindInput("targets"), 0);
  EXPECT_GE(model->eval.FindInput("labels"), 0);
  EXPECT_TRUE(model->eval.outputs.count("correct"));
}

TEST(BuildModel, AnIgnoredLabelNeedsNoOutput) {
  const auto status = [](const std::string& loss, SampleInfo sample) {
    sample.classes = 256;
    sample.other_classes = 4;
    return BuildModel(Resolve("layers { flatten {} } layers { dense { units: 4 } } loss { " + loss + " }"), sample, 2,
                      2)
        .status();
  };
  EXPECT_TRUE(status("softmax_cross_entropy { ignore_index: 255 }", kImages).ok());
  EXPECT_FALSE(status("softmax_cross_entropy { ignore_index: 254 }", kImages).ok());
  EXPECT_FALSE(status("softmax_cross_entropy {}", kImages).ok());
  EXPECT_FALSE(status("mean_squared_error {}", kImages).ok());
}

TEST(BuildModel, RecurrentLayersHavePyTorchsParameters) {
  const SampleInfo sequences{.input_shape = {7, 3}, .classes = 9};
  auto model = BuildModel(Resolve(R"pb(
                            layers {
                              name: "rnn"
                              lstm { units: 5 layers: 2 output: LAST_STEP }
                            }
                            layers {
                              name: "head"
                              dense { units: 9 }
                            }
                            loss { softmax_cross_entropy { ignore_index: 0 } })pb"),
                          sequences, 2, 2);
  ASSERT_TRUE(model.ok()) << model.status();
  std::vector<std::string> names;
  for (const ir::Persistent& p : model->phases[0].train.parameters) names.push_back(p.name + ir::TypeString(p.type));
  EXPECT_THAT(names, ::testing::ElementsAre(
                         "rnn.weight_ih_l0f32[20, 3]", "rnn.weight_hh_l0f32[20, 5]", "rnn.bias_ih_l0f32[20]",
                         "rnn.bias_hh_l0f32[20]", "rnn.weight_ih_l1f32[20, 5]", "rnn.weight_hh_l1f32[20, 5]",
                         "rnn.bias_ih_l1f32[20]", "rnn.bias_hh_l1f32[20]", "head.weightf32[9, 5]", "head.biasf32[9]"));
  for (const char* output : {"losses", "loss_weights", "surprises", "correct", "top5", "counted"}) {
    EXPECT_TRUE(model->eval.outputs.count(output)) << output;
  }
}

std::vector<std::string> ParametersOf(const std::string& layers, const SampleInfo& sample, const std::string& mode) {
  auto model = BuildModel(Resolve(layers + " loss { softmax_cross_entropy {} }", mode), sample, 2, 4);
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return {};
  EXPECT_TRUE(ops::VerifyGraph(model->phases[0].train).ok()) << ops::VerifyGraph(model->phases[0].train);
  EXPECT_TRUE(ops::VerifyGraph(model->eval).ok()) << ops::VerifyGraph(model->eval);
  std::vector<std::string> names;
  for (const ir::Persistent& p : model->phases[0].train.parameters) names.push_back(p.name + ir::TypeString(p.type));
  return names;
}

TEST(BuildModel, AttentionAndRowNormsHavePyTorchsParameters) {
  constexpr char kLayers[] = R"pb(
    layers {
      name: "embed"
      dense { units: 12 }
    }
    layers {
      name: "ln"
      layer_norm {}
    }
    layers {
      name: "self"
      multi_head_attention { heads: 3 causal: true }
    }
    layers {
      name: "sum"
      add {}
      inputs: "embed"
      inputs: "self"
    }
    layers {
      name: "rms"
      rms_norm {}
    }
    layers {
      name: "cross"
      multi_head_attention { heads: 2 bias: false }
      inputs: "rms"
      inputs: "embed"
    }
    layers {
      name: "flat"
      flatten {}
    }
    layers {
      name: "head"
      dense { units: 4 }
    }
  )pb";
  for (const char* mode : {"mode: FP32", "mode: TF32", "mode: FP16", "mode: BF16", "mode: FP8"}) {
    EXPECT_THAT(ParametersOf(kLayers, {.input_shape = {7, 5}, .classes = 4}, mode),
                ::testing::ElementsAre("embed.weightf32[12, 5]", "embed.biasf32[12]", "ln.weightf32[12]",
                                       "ln.biasf32[12]", "self.in_proj_weightf32[36, 12]", "self.in_proj_biasf32[36]",
                                       "self.out_proj.weightf32[12, 12]", "self.out_proj.biasf32[12]",
                                       "rms.weightf32[12]", "cross.in_proj_weightf32[36, 12]",
                                       "cross.out_proj.weightf32[12, 12]", "head.weightf32[4, 84]", "head.biasf32[4]"));
  }
}

TEST(BuildModel, GroupsAndTransposedConvolutions) {
  constexpr char kLayers[] = R"pb(
    layers {
      name: "a"
      conv2d {
        filters: 6
        kernel: 3
        groups: 3
        dilation: 2
        pads: [ 1, 2, 3, 2 ]
      }
    }
    layers {
      name: "up"
      conv_transpose2d { filters: 4 kernel: 3 stride: 2 pads: 1 output_padding: 1 groups: 2 }
    }
    layers {
      name: "gn"
      group_norm { groups: 2 }
    }
    layers {
      name: "in"
      instance_norm {}
    }
    layers {
      name: "gap"
      global_avg_pool {}
    }
  )pb";
  for (const char* mode : {"mode: FP32", "mode: BF16", "mode: FP8"}) {
    EXPECT_THAT(ParametersOf(kLayers, kImages, mode),
                ::testing::ElementsAre("a.weightf32[6, 3, 3, 1]", "a.biasf32[6]", "up.weightf32[6, 3, 3, 2]",
                                       "up.biasf32[4]", "gn.weightf32[4]", "gn.biasf32[4]"));
  }
}

TEST(BuildModel, ALabelAtEachPosition) {
  const SampleInfo text{.input_shape = {7, 3}, .classes = 6, .label_shape = {7}};
  const std::string layers = "layers { name: 'rnn' gru { units: 6 bias: false } } loss { ";
  auto model = BuildModel(Resolve(layers + "softmax_cross_entropy {} }", "mode: BF16"), text, 2, 4);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->eval.type(model->eval.outputs.at("losses")).shape, (Shape{4, 7}));
  EXPECT_EQ(model->phases[0].train.type(model->phases[0].train.FindInput("labels")).shape, (Shape{2, 7}));
  EXPECT_FALSE(BuildModel(Resolve(layers + "l1 {} }"), text, 2, 4).ok());
}

TEST(BuildModel, BidirectionalLayersHavePyTorchsParameters) {
  constexpr char kLayers[] = R"pb(
    layers {
      name: "rnn"
      gru { units: 5 layers: 2 bidirectional: true output: LAST_STEP }
    }
  )pb";
  for (const char* mode : {"mode: FP32", "mode: FP16", "mode: FP8"}) {
    EXPECT_THAT(ParametersOf(kLayers, {.input_shape = {7, 3}, .classes = 9}, mode),
                ::testing::UnorderedElementsAre(
                    "rnn.weight_ih_l0f32[15, 3]", "rnn.weight_hh_l0f32[15, 5]", "rnn.bias_ih_l0f32[15]",
                    "rnn.bias_hh_l0f32[15]", "rnn.weight_ih_l0_reversef32[15, 3]", "rnn.weight_hh_l0_reversef32[15, 5]",
                    "rnn.bias_ih_l0_reversef32[15]", "rnn.bias_hh_l0_reversef32[15]", "rnn.weight_ih_l1f32[15, 10]",
                    "rnn.weight_hh_l1f32[15, 5]", "rnn.bias_ih_l1f32[15]", "rnn.bias_hh_l1f32[15]",
                    "rnn.weight_ih_l1_reversef32[15, 10]", "rnn.weight_hh_l1_reversef32[15, 5]",
                    "rnn.bias_ih_l1_reversef32[15]", "rnn.bias_hh_l1_reversef32[15]"));
  }
}

constexpr char kSpeech[] = R"pb(
  layers {
    name: "embed"
    dense { units: 8 }
  }
  layers {
    name: "positions"
    positional_embedding { positions: 20 }
  }
  layers {
    name: "attend"
    multi_head_attention { heads: 2 }
  }
  layers {
    name: "half"
    slice { begin: 4 }
  }
  layers {
    name: "both"
    concat {}
    inputs: "attend"
    inputs: "half"
  }
  layers {
    name: "rnn"
    lstm { units: 6 bias: false bidirectional: true }
  }
  layers {
    name: "head"
    dense { units: 5 }
  }
)pb";

TEST(BuildModel, SamplesWithLengthsReachAttentionRecurrenceAndCtc) {
  const SampleInfo speech{
      .input_shape = {16, 3}, .classes = 5, .label_shape = {4}, .lengths = true, .label_lengths = true};
  for (const char* mode : {"mode: FP32", "mode: FP16", "mode: FP8"}) {
    auto model = BuildModel(Resolve(absl::StrCat(kSpeech, "loss { ctc { blank: 4 } }"), mode), speech, 2, 4);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_TRUE(ops::VerifyGraph(model->phases[0].train).ok()) << ops::VerifyGraph(model->phases[0].train);
    EXPECT_EQ(model->phases[0].train.type(model->phases[0].train.FindInput("label_lengths")).shape, Shape{2});
    const ir::ValueId lengths = model->phases[0].train.FindInput("lengths");
    std::map<ir::OpKind, int> readers;
    int masks = 0;
    for (const ir::Node& node : model->phases[0].train.nodes) {
      readers[node.op] += static_cast<int>(std::count(node.inputs.begin(), node.inputs.end(), lengths));
      masks += node.op == ir::OpKind::kSelfAttention && node.inputs.size() == 2;
    }
    EXPECT_EQ(masks, 1);
    EXPECT_EQ(readers[ir::OpKind::kLstm], 2);
    EXPECT_EQ(readers[ir::OpKind::kCtcLoss], 1);
    EXPECT_EQ(readers[ir::OpKind::kReshape], 1);
    EXPECT_TRUE(model->eval.outputs.count("logits"));
  }
}

TEST(BuildModel, ALayerThatNobodyReadsIsNotTrained) {
  const SampleInfo sample{.input_shape = {4}, .classes = 3};
  const auto model =
      BuildModel(Resolve("layers { name: 'a' dense { units: 5 } } layers { name: 'dead' dense { units: 7 } }"
                         "layers { name: 'b' inputs: 'a' dense { units: 3 } } loss { softmax_cross_entropy {} }"),
                 sample, 2, 2);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(model->phases[0].trains, ::testing::ElementsAre(true, true, false, false, true, true));
}

TEST(BuildModel, PoolsTakeDilationAndCountPadding) {
  auto model = BuildModel(Resolve(R"pb(
                            layers {
                              max_pool {
                                size: 2
                                stride: 1
                                dilation: [ 3, 2 ]
                                pads: [ 0, 1, 2, 0 ]
                              }
                            }
                            layers { avg_pool { size: 2 stride: 1 padding: SAME dilation: 2 count_include_pad: true } }
                            layers { global_avg_pool {} }
                            layers { dense { units: 4 } }
                            loss { softmax_cross_entropy {} })pb"),
                          {.input_shape = {8, 6, 4}, .classes = 4}, 2, 2);
  ASSERT_TRUE(model.ok()) << model.status();
  std::map<ir::OpKind, const ir::Node*> seen;
  for (const ir::Node& node : model->phases[0].train.nodes) seen[node.op] = &node;
  // (8 + 2 - 4) + 1 high, (6 + 1 - 3) + 1 wide; SAME keeps that.
  EXPECT_EQ(model->phases[0].train.type(seen[ir::OpKind::kMaxPool2d]->outputs[0]).shape, (Shape{2, 7, 5, 4}));
  EXPECT_EQ(model->phases[0].train.type(seen[ir::OpKind::kAvgPool2d]->outputs[0]).shape, (Shape{2, 7, 5, 4}));
  EXPECT_EQ(seen[ir::OpKind::kAvgPool2d]->attributes.Int("count_include_pad"), 1);
  EXPECT_EQ(seen[ir::OpKind::kMaxPool2d]->attributes.Ints("dilations"), (std::vector<int64_t>{3, 2}));
}

TEST(BuildModel, EveryLossOfFloatTargets) {
  const SampleInfo vectors{.input_shape = {7}, .target_features = 2};
  for (const char* loss : {"mean_squared_error {}", "l1 {}", "smooth_l1 { beta: 0.5 }", "hinge {}",
                           "sigmoid_cross_entropy { pos_weight: [ 1, 3 ] }",
                           "softmax_cross_entropy { label_smoothing: 0.1 class_weights: [ 1, 2 ] }"}) {
    auto model = BuildModel(Resolve(absl::StrCat("layers { dense { units: 2 } } loss { ", loss, " }")), vectors, 2, 2);
    ASSERT_TRUE(model.ok()) << loss << model.status();
    EXPECT_EQ(model->eval.type(model->eval.outputs.at("losses")).shape, Shape{2});
  }
}

TEST(BuildModel, LayersOwnTheParametersBeneathTheirNames) {
  // 3 * 8 * 8 and 24 going in, 8 * 8 and 8 coming out; "attend.norm" is a layer of its own.
  const std::string model =
      "layers { name: 'attend' multi_head_attention { heads: 2 } } layers { name: 'attend.norm' layer_norm {} } "
      "layers { name: 'head' dense { units: 4 } } loss { softmax_cross_entropy {} }";
  const SampleInfo steps{.input_shape = {5, 8}, .classes = 4, .label_shape = {5}};
  const auto built = BuildModel(Resolve(model), steps, 2, 2);
  ASSERT_TRUE(built.ok()) << built.status();
  ASSERT_EQ(built->layers.size(), 3u);
  EXPECT_EQ(built->layers[0].parameters(), 192 + 24 + 64 + 8);
  EXPECT_EQ(built->layers[1].parameters(), 16);
  EXPECT_EQ(built->layers[2].parameters(), 32 + 4);
}

}  // namespace
}  // namespace ampd::models
