// What BuildModel refuses, and how it says so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/models/model.h"
#include "tests/unit/engine/models/model_test_util.h"

namespace ampd::models {
namespace {

using ::testing::HasSubstr;

const SampleInfo kImages{.input_shape = {8, 6, 3}, .classes = 4};

TEST(BuildModelRefuses, WhatWouldMixStepsThatCountWithOthers) {
  SampleInfo sample{.input_shape = {16, 8}, .classes = 5, .lengths = true};
  const std::string loss = "loss { softmax_cross_entropy {} }";
  for (const char* layer :
       {"batch_norm {}", "flatten {}", "reshape { shape: [ -1 ] }", "transpose {}", "slice { axis: 1 begin: 1 }",
        "group_norm { groups: 2 }", "instance_norm {}", "concat { axis: 1 } inputs: 'd' inputs: 'd'"}) {
    auto model = BuildModel(
        Resolve(absl::StrCat("layers { name: 'd' dense { units: 8 } } layers { name: 'mix' ", layer, " }", loss)),
        sample, 2, 2);
    ASSERT_FALSE(model.ok()) << layer;
    const std::vector<FieldViolation> violations = FieldViolationsOf(model.status());
    ASSERT_EQ(violations.size(), 1u) << model.status();
    EXPECT_EQ(violations[0].field, "model.layers[1]");
    EXPECT_THAT(violations[0].description, HasSubstr("would mix steps")) << layer;
  }
  // Time in the last axis' place.
  sample.input_shape = {16};
  EXPECT_FALSE(BuildModel(Resolve("layers { dense { units: 5 } }" + loss), sample, 2, 2).ok());
  // One output a sample from the sequence's end.
  sample.input_shape = {16, 8};
  EXPECT_TRUE(BuildModel(Resolve("layers { lstm { units: 5 output: LAST_STEP } } " + loss), sample, 2, 2).ok());
  EXPECT_FALSE(BuildModel(Resolve("layers { lstm { units: 5 } } " + loss), sample, 2, 2).ok());
}

TEST(BuildModelRefuses, NormalizedIds) {
  SampleInfo sample{.input_shape = {6}, .classes = 5};
  const std::string loss = "layers { lstm { units: 5 output: LAST_STEP } } loss { softmax_cross_entropy {} }";
  for (const char* layers : {"layers { name: 'e' embedding { vocabulary: 9 features: 4 } }",
                             "layers { name: 's' slice { axis: 1 begin: 1 } } layers { name: 'e' embedding { "
                             "vocabulary: 9 features: 4 } }"}) {
    sample.normalized = "UNIT";
    const auto scaled = BuildModel(Resolve(layers + loss), sample, 2, 2);
    ASSERT_FALSE(scaled.ok());
    const std::vector<FieldViolation> violations = FieldViolationsOf(scaled.status());
    ASSERT_EQ(violations.size(), 1u) << scaled.status();
    EXPECT_EQ(violations[0].field, "data.image.normalize");
    EXPECT_THAT(violations[0].description, HasSubstr("is UNIT, but node e"));
    sample.normalized.clear();
    EXPECT_TRUE(BuildModel(Resolve(layers + loss), sample, 2, 2).ok());
  }
}

TEST(BuildModelRefuses, AnInstanceNormOfOneValue) {
  const SampleInfo sample{.input_shape = {4, 4, 2}, .classes = 3};
  const std::string rest =
      " } layers { name: 'gap' global_avg_pool {} } layers { dense { units: 3 } } loss { "
      "softmax_cross_entropy {} }";
  const auto build = [&](int stride, const char* norm) {
    return BuildModel(Resolve(absl::StrCat("layers { conv2d { filters: 4 kernel: 1 stride: ", stride,
                                           " } } layers { name: 'norm' ", norm, rest)),
                      sample, 2, 2);
  };
  EXPECT_TRUE(build(2, "instance_norm {}").ok());
  EXPECT_THAT(build(4, "instance_norm {}").status().ToString(),
              HasSubstr("[instance_norm] needs more than one value a channel to train"));
  EXPECT_TRUE(build(4, "group_norm { groups: 4 }").ok());
}

struct Misfit {
  std::string model;
  SampleInfo sample;
  std::string field;
  std::string message;
};

TEST(BuildModelRefuses, MisfitsByLayerAndField) {
  const std::string loss = " loss { softmax_cross_entropy {} }";
  const SampleInfo vectors{.input_shape = {7}, .classes = 4};
  const std::vector<Misfit> misfits = {
      {"layers { name: 'head' dense { units: 4 } }" + loss, kImages, "model.layers[0]",
       "[dense] needs [batch, features] or [batch, time, features], has [2, 8, 6, 3]"},
      {"layers { name: 'c' conv2d { filters: 4 kernel: 3 } }" + loss, vectors, "model.layers[0]",
       "[conv2d] needs [batch, height, width, channels], has [2, 7]"},
      {"layers { name: 'c' conv2d { filters: 4 kernel: 9 } }" + loss, kImages, "model.layers[0]",
       "larger than the padded input [8, 6], node c"},
      {"layers { name: 'a' multi_head_attention { heads: 2 } }" + loss, vectors, "model.layers[0]",
       "[multi_head_attention] needs [batch, time, features]"},
      {"layers { name: 'a' multi_head_attention { heads: 2 } }" + loss,
       {.input_shape = {3, 7}, .classes = 4},
       "model.layers[0]",
       "2 heads do not divide 7 features, node a"},
      {"layers { name: 'g' group_norm { groups: 2 } }" + loss, kImages, "model.layers[0]",
       "3 channels are not whole 2"},
      {"layers { name: 'f' flatten {} } layers { name: 'g' group_norm { groups: 2 } }" + loss, kImages,
       "model.layers[1]", "[group_norm] cannot follow a flatten layer"},
      {"layers { name: 'c' conv2d { filters: 4 kernel: 3 groups: 2 } }" + loss, kImages, "model.layers[0]",
       "2 groups do not divide the input's 3 channels"},
      {"layers { name: 'g' global_avg_pool {} } layers { name: 'p' max_pool { size: 2 } }" + loss, kImages,
       "model.layers[1]", "node p"},
      {"layers { name: 'g' global_avg_pool {} } layers { name: 'h' dense { units: 3 } }" + loss, kImages, "model.loss",
       "the last layer has 3 outputs, the data has 4 classes"},
      {"layers { name: 'r' relu {} }" + loss, kImages, "model.loss", "needs [batch, outputs]"},
      {"layers { name: 'h' dense { units: 3 } } loss { softmax_cross_entropy { ignore_index: 1 } }",
       {.input_shape = {7}, .target_features = 3},
       "model.loss",
       "has an ignore_index, but the data has float targets"},
      {"layers { name: 'p' positional_embedding { positions: 4 } }" + loss,
       {.input_shape = {5, 2}, .classes = 2},
       "model.layers[0]",
       "positions are 4, the sequence has 5 steps, node p"},
      {"layers { name: 's' slice { begin: 3 end: -4 } }" + loss, vectors, "model.layers[0]",
       "[slice] begin and end are 3 and 3, axis 1 has extent 7, node s"},
      {"layers { name: 's' slice { axis: 2 } }" + loss, vectors, "model.layers[0]",
       "axis is 2, the input has axes 1 to 1"},
      {"layers { name: 't' transpose {} }" + loss, kImages, "model.layers[0]", "[transpose] reads an image"},
      {"layers { name: 't' transpose { axes: [ 1 ] } }" + loss, vectors, "model.layers[0]",
       "[transpose] 1 axes are given"},
      {"layers { name: 'h' dense { units: 3 } } loss { ctc {} }", vectors, "model.loss", "needs label sequences"},
      {"layers { name: 'rnn' gru { units: 3 output: LAST_STEP } } loss { ctc {} }",
       {.input_shape = {5, 2}, .classes = 3, .label_shape = {2}},
       "model.loss",
       "[ctc_loss] needs [batch, time, classes] from the last layer, has [2, 3]"},
      {"layers { name: 'h' dense { units: 3 } } loss { mean_squared_error {} }",
       {.input_shape = {7}, .target_features = 2},
       "model.loss",
       "3 outputs, the data has 2 target features"},
      {"layers { name: 'h' dense { units: 4 } } loss { softmax_cross_entropy { class_weights: [ 1, 1, 1 ] } }", vectors,
       "model.loss", "class_weights has 3 numbers, the last layer 4 outputs"},
      {"layers { name: 'rnn' lstm { units: 4 } }" + loss, vectors, "model.layers[0]",
       "[lstm] needs [batch, time, features] or an image, has [2, 7], node rnn"},
      {"layers { name: 'a' dense { units: 3 } } layers { name: 'b' dense { units: 2 } } layers { name: 's' add {} "
       "inputs: 'a' inputs: 'b' }" +
           loss,
       vectors, "model.layers[2]", "[add] input 1 has shape [2, 2], the others [2, 3], node s"},
      {"layers { name: 'r' reshape { shape: [ 2, 3 ] } }" + loss, vectors, "model.layers[0]",
       "shape [2, 7] does not fit into [2, 2, 3], node r.reshape"},
      {"layers { name: 'r' reshape { shape: [ -1 ] } }" + loss, kImages, "model.layers[0]", "reads an image"},
      {"layers { name: 'c' concat { axis: 2 } inputs: 'input' inputs: 'input' }" + loss, vectors, "model.layers[0]",
       "[concat] axis is 2, the input has axes 1 to 1, node c"},
      {"layers { name: 'a' multi_head_attention { heads: 2 } } layers { name: 'a.out_proj' dense { units: 28 } }" +
           loss,
       {.input_shape = {3, 28}, .classes = 28, .label_shape = {3}},
       "model.layers[1].name",
       "layer a.out_proj would have a parameter a.out_proj.weight, which is layer a's: one of them needs another name"},
      {"layers { name: 'a.out_proj' dense { units: 28 } } layers { name: 'a' multi_head_attention { heads: 2 } }" +
           loss,
       {.input_shape = {3, 28}, .classes = 28, .label_shape = {3}},
       "model.layers[1].name",
       "layer a would have a parameter a.out_proj.weight, which is layer a.out_proj's"},
  };
  for (const Misfit& m : misfits) {
    auto model = BuildModel(Resolve(m.model), m.sample, 2, 2);
    ASSERT_FALSE(model.ok()) << m.message;
    const std::vector<FieldViolation> violations = FieldViolationsOf(model.status());
    ASSERT_EQ(violations.size(), 1u) << model.status();
    EXPECT_EQ(violations[0].field, m.field);
    EXPECT_THAT(violations[0].description, HasSubstr(m.message));
  }
}

TEST(BuildModelRefuses, HugeModelsWithoutOverflow) {
  const std::string wide =
      "layers { flatten {} } layers { name: 'a' dense { units: 1048576 } } layers { name: 'b' dense { units: 1048576 } "
      "}";
  auto model = BuildModel(Resolve(wide + " loss { softmax_cross_entropy {} }"), kImages, 1 << 20, 2);
  ASSERT_FALSE(model.ok());
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("exceed 10^12 elements"));
  model = BuildModel(Resolve(wide + " loss { softmax_cross_entropy {} }"),
                     {.input_shape = {int64_t{1} << 31, int64_t{1} << 31, 1 << 20}, .classes = 2}, 1 << 20, 2);
  ASSERT_FALSE(model.ok());
}

TEST(BuildModelRefuses, NothingToTrain) {
  auto model = BuildModel(Resolve("layers { global_avg_pool {} } loss { softmax_cross_entropy {} }"),
                          {.input_shape = {2, 2, 4}, .classes = 4}, 2, 2);
  ASSERT_FALSE(model.ok());
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("nothing to train"));
}

}  // namespace
}  // namespace ampd::models
