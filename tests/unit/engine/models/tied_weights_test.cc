// A dense layer whose weight is an embedding's table, as in GPT-2.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/models/model.h"
#include "tests/unit/engine/models/model_test_util.h"

namespace ampd::models {
namespace {

using ::testing::HasSubstr;

// Bytes or tokens, each labelled with what follows it.
SampleInfo Text(int64_t length, int64_t classes) {
  SampleInfo sample;
  sample.input_shape = {length};
  sample.classes = classes;
  sample.label_shape = {length};
  return sample;
}

TEST(BuildModel, ATiedHeadReadsTheEmbeddingsTable) {
  constexpr char kTied[] = R"pb(
    layers {
      name: "table"
      embedding { vocabulary: 11 features: 4 }
    }
    layers {
      name: "head"
      dense { units: 11 weight_of: "table" }
    }
    loss { softmax_cross_entropy {} }
  )pb";
  for (const char* mode : {"mode: FP32", "mode: TF32", "mode: FP16", "mode: BF16", "mode: FP8"}) {
    const auto model = BuildModel(Resolve(kTied, mode), Text(6, 11), 2, 2, passes::kTensorCorePadding);
    ASSERT_TRUE(model.ok()) << model.status();
    const ir::Graph& train = model->phases[0].train;
    ASSERT_EQ(train.parameters.size(), 1u) << mode;
    EXPECT_EQ(train.parameters[0].name, "table.weight");
    // Both uses add to its gradient.
    const auto adds = [](const ir::Node& node) { return node.op == ir::OpKind::kAccumulateGrad; };
    EXPECT_EQ(std::count_if(train.nodes.begin(), train.nodes.end(), adds), 2) << mode;
    EXPECT_EQ(model->layers[0].parameters(), 44);
    EXPECT_EQ(model->layers[1].parameters(), 0);
  }
}

TEST(BuildModel, ATiedHeadMustFit) {
  constexpr char kTied[] = R"pb(
    layers {
      name: "table"
      embedding { vocabulary: 11 features: 4 }
    }
    layers {
      name: "wide"
      dense { units: 5 }
    }
    layers {
      name: "head"
      dense { units: 11 weight_of: "table" }
    }
    loss { softmax_cross_entropy {} }
  )pb";
  const auto model = BuildModel(Resolve(kTied), Text(6, 11), 2, 2);
  EXPECT_THAT(std::string(FieldViolationsOf(model.status()).at(0).description),
              HasSubstr("[dense] weight_of table: its table is [11, 4], a weight of [11, 5] is needed, node head"));
}

// Rows that tensor cores want are storage: parameters and outputs have the vocabulary's extent, and the loss knows it.
TEST(BuildModel, TheVocabularyOfATiedHeadIsPaddedInStorageOnly) {
  const std::string preset = "preset { gpt2 { vocabulary: 50257 layers: 1 heads: 2 features: 16 positions: 8 } }";
  const auto model = BuildModel(Resolve(preset, "mode: BF16"), Text(8, 50257), 1, 1, passes::kTensorCorePadding);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto of_head = [](const passes::PaddedExtent& p) { return p.node == "lm_head.matmul" && p.to == 50264; };
  EXPECT_EQ(std::count_if(model->padding.begin(), model->padding.end(), of_head), 1);
  EXPECT_EQ(model->phases[0].train.parameters[0].type.shape, (Shape{50257, 16}));
  EXPECT_EQ(model->eval.type(model->eval.outputs.at("logits")).shape, (Shape{1, 8, 50257}));
  for (const ir::Node& node : model->phases[0].train.nodes) {
    if (node.op != ir::OpKind::kSoftmaxCrossEntropy) continue;
    EXPECT_EQ(model->phases[0].train.type(node.inputs[0]).shape.back(), 50264);
    EXPECT_EQ(node.attributes.Int("classes"), 50257);
  }
}

TEST(BuildModel, Gpt2OfDefaultSizeHas124MParameters) {
  const auto model = BuildModel(Resolve("preset { gpt2 {} }"), Text(1024, 50257), 1, 1);
  ASSERT_TRUE(model.ok()) << model.status();
  int64_t parameters = 0;
  for (const ir::Persistent& p : model->phases[0].train.parameters) parameters += NumElements(p.type.shape);
  EXPECT_EQ(parameters, 124439808);
  EXPECT_EQ(model->phases[0].train.parameters[0].init.bound, 0.02);
}
}  // namespace
}  // namespace ampd::models
