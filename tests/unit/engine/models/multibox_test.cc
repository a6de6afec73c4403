// Priors of the multibox loss, and its place in a model's graphs.
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "engine/models/model.h"
#include "engine/models/prior_boxes.h"
#include "engine/ops/op_def.h"
#include "tests/unit/engine/models/model_test_util.h"

namespace ampd::models {
namespace {

using ::testing::HasSubstr;

v1::MultiboxLoss Loss(const std::string& text) {
  v1::MultiboxLoss loss;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &loss)) << text;
  return loss;
}

TEST(PriorBoxes, GoRowByRowAndRatioByRatio) {
  const v1::MultiboxLoss loss = Loss(
      "maps { height: 2 width: 4 scale: 0.2 ratios: [ 4, 1 ] extra_scale: 0.5 } "
      "maps { height: 1 width: 1 scale: 0.9 ratios: 0.25 }");
  EXPECT_EQ(CountPriors(loss), 2 * 4 * 3 + 1);
  const Tensor priors = PriorBoxes(loss);
  ASSERT_EQ(priors.shape(), (Shape{25, 4}));
  const auto expect = [&](int64_t prior, std::vector<double> values) {
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_FLOAT_EQ(priors.as<float>()[static_cast<size_t>(prior) * 4 + i], static_cast<float>(values[i]))
          << prior << " " << i;
    }
  };
  expect(0, {0.125, 0.25, 0.4, 0.1});
  expect(1, {0.125, 0.25, 0.2, 0.2});
  expect(2, {0.125, 0.25, 0.5, 0.5});
  expect(3, {0.375, 0.25, 0.4, 0.1});
  expect(12, {0.125, 0.75, 0.4, 0.1});
  expect(23, {0.875, 0.75, 0.5, 0.5});
  expect(24, {0.5, 0.5, 0.45, 1.8});
}

const SampleInfo kScenes{.input_shape = {32, 32, 3}, .target_features = 15};
constexpr char kSsd[] = "preset { ssd { classes: 3 size: 32 width: 4 } }";

TEST(Multibox, ReadsPredictionsInFp32InEveryMode) {
  for (const char* mode : {"FP32", "FP16", "BF16", "FP8"}) {
    const auto model = BuildModel(Resolve(kSsd, absl::StrCat("mode: ", mode)), kScenes, 2, 4);
    ASSERT_TRUE(model.ok()) << model.status();
    const ir::Graph& train = model->phases[0].train;
    std::map<ir::OpKind, int> count;
    for (const ir::Node& node : train.nodes) {
      ++count[node.op];
      if (node.op != ir::OpKind::kMultiboxLoss && node.op != ir::OpKind::kMultiboxLossGrad) continue;
      const ir::ValueId prediction = node.inputs[node.op == ir::OpKind::kMultiboxLoss ? 0 : 1];
      EXPECT_EQ(train.type(prediction).dtype, DType::kF32) << mode;
      EXPECT_EQ(train.type(prediction).shape, (Shape{2, 4 * (16 + 4 + 1), 8})) << mode;
    }
    EXPECT_EQ(count[ir::OpKind::kMultiboxMatch], 1) << mode;
    EXPECT_EQ(count[ir::OpKind::kMultiboxLoss], 1) << mode;
    EXPECT_EQ(count[ir::OpKind::kMultiboxLossGrad], 1) << mode;
    EXPECT_EQ(train.type(train.FindInput("targets")).shape, (Shape{2, 15}));
    EXPECT_EQ(model->eval.type(model->eval.outputs.at("logits")).shape, (Shape{4, 84, 8}));
  }
}

// In memory as PyTorch's permute(0, 2, 3, 1).reshape(batch, -1, features).
TEST(Multibox, ReshapesImagesToRowsOfPixels) {
  const std::string loss = " loss { multibox { maps { height: 4 width: 2 scale: 0.5 ratios: [ 1, 2 ] } } }";
  const SampleInfo image{.input_shape = {4, 2, 3}, .target_features = 5};
  const auto build = [&](const std::string& shape) {
    return BuildModel(
        Resolve("layers { name: 'c' conv2d { filters: 12 kernel: 1 } } layers { name: 'r' reshape { shape: [ " + shape +
                " ] } }" + loss),
        image, 2, 2);
  };
  EXPECT_TRUE(build("-1, 6").ok()) << build("-1, 6").status();
  for (const char* shape : {"-1, 5", "16, 6", "-1", "4, -1, 6", "2, -1"}) {
    const auto model = build(shape);
    ASSERT_FALSE(model.ok()) << shape;
    EXPECT_THAT(FieldViolationsOf(model.status()).at(0).description, HasSubstr("[reshape] reads an image")) << shape;
  }
}

TEST(Multibox, RefusesWhatDoesNotFit) {
  const std::string flat = "layers { name: 'h' dense { units: 8 } } layers { name: 'r' reshape { shape: [ 2, 4 ] } }";
  const std::string loss = " loss { multibox { maps { height: 1 width: 1 scale: 0.5 ratios: [ 1, 2 ] } } }";
  const std::vector<std::tuple<std::string, SampleInfo, std::string>> cases = {
      {kSsd, {.input_shape = {32, 32, 3}, .classes = 4}, "needs five float targets for each box, the data has class"},
      {kSsd,
       {.input_shape = {32, 32, 3}, .target_features = 16},
       "needs five float targets for each box, the data has "
       "16 a sample"},
      {kSsd,
       {.input_shape = {64, 64, 3}, .target_features = 15},
       "needs [batch, 84 priors, 5 + classes] from the last layer, has [2, 336, 8]"},
      {flat + loss,
       {.input_shape = {7}, .target_features = 5},
       "needs [batch, 2 priors, 5 + classes] from the last layer, has [2, 2, 4]"},
  };
  for (const auto& [text, sample, message] : cases) {
    const auto model = BuildModel(Resolve(text), sample, 2, 2);
    ASSERT_FALSE(model.ok()) << message;
    const std::vector<FieldViolation> violations = FieldViolationsOf(model.status());
    ASSERT_EQ(violations.size(), 1u) << model.status();
    EXPECT_EQ(violations[0].field, "model.loss");
    EXPECT_THAT(violations[0].description, HasSubstr(message));
  }
}

}  // namespace
}  // namespace ampd::models
