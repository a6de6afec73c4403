// Along which axes samples and classes lie, where a file's shapes alone do not say it.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/models/imported_jobs.h"

namespace ampd::models {
namespace {

using ::testing::HasSubstr;

// Steps of 4 numbers, each of which a choice among 3 is made for, with the steps first in the result or not.
ModelProto Tagger(int64_t batch, int64_t steps, bool steps_first) {
  ModelProto m = onnx::EmptyModel();
  onnx::AddInput(&m, "x", {batch, steps, 4});
  AddWeights(&m, "w", {4, 3});
  onnx::SetInts(onnx::AddNode(&m, "Transpose", {"x"}, {"t"}), "perm", {1, 0, 2});
  onnx::AddNode(&m, "MatMul", {"t", "w"}, {"turned"});
  onnx::SetInts(onnx::AddNode(&m, "Transpose", {"turned"}, {"y"}), "perm", {1, 0, 2});
  onnx::AddOutput(&m, steps_first ? "turned" : "y");
  return m;
}

TEST(ImportedAxes, SamplesComeFirstHoweverManyThereAre) {
  for (const int64_t steps : {4, 5, 8}) {
    const Job job = {.sample = {.input_shape = {steps, 4}, .classes = 3, .label_shape = {steps}}};
    for (const int64_t written : {-1, 1, 4}) {
      EXPECT_TRUE(Build(Tagger(written, steps, false), job).ok()) << written << " " << steps;
      EXPECT_THAT(Refused(Tagger(written, steps, true), job), HasSubstr("model.onnx.outputs: 'turned' is f32["))
          << written << " " << steps;
    }
  }
}

// Nothing says which of two axes of 4 the samples' is where no other batch can be had.
TEST(ImportedAxes, WhatOnlyOneBatchSaysMayNotBeRead) {
  ModelProto m = Tagger(4, 4, false);
  *m.mutable_graph()->add_initializer() = onnx::Floats("table", {4, 4, 3});
  onnx::AddNode(&m, "Add", {"y", "table"}, {"sum"});
  m.mutable_graph()->mutable_output(0)->set_name("sum");
  const Job job = {.sample = {.input_shape = {4, 4}, .classes = 3, .label_shape = {4}}};
  EXPECT_THAT(Refused(m, job), HasSubstr("export it with an open batch"));
  // Of 5 steps there is one such axis.
  m = Tagger(4, 5, false);
  *m.mutable_graph()->add_initializer() = onnx::Floats("table", {4, 5, 3});
  onnx::AddNode(&m, "Add", {"y", "table"}, {"sum"});
  m.mutable_graph()->mutable_output(0)->set_name("sum");
  const auto model = Build(m, {.sample = {.input_shape = {5, 4}, .classes = 3, .label_shape = {5}}});
  EXPECT_TRUE(model.ok()) << model.status();
}

TEST(ImportedAxes, RecurrencesOfAFixedBatchTakeAnother) {
  const auto recurrent = [](int64_t batch) {
    ModelProto m = onnx::EmptyModel();
    onnx::AddInput(&m, "x", {batch, 5, 4});
    AddWeights(&m, "w", {1, 3, 4});
    AddWeights(&m, "r", {1, 3, 3});
    AddWeights(&m, "b", {1, 6});
    *m.mutable_graph()->add_initializer() = onnx::Ints("zero", {0});
    onnx::SetInts(onnx::AddNode(&m, "Transpose", {"x"}, {"t"}), "perm", {1, 0, 2});
    onnx::AddNode(&m, "RNN", {"t", "w", "r", "b"}, {"", "last"});
    onnx::AddNode(&m, "Squeeze", {"last", "zero"}, {"y"});
    onnx::AddOutput(&m, "y");
    return m;
  };
  const Job job = {.sample = {.input_shape = {5, 4}, .classes = 3}};
  const auto open = Build(recurrent(-1), job), fixed = Build(recurrent(1), job);
  ASSERT_TRUE(open.ok()) << open.status();
  ASSERT_TRUE(fixed.ok()) << fixed.status();
  const GraphInputs in = InputsOf(open->eval, 3);
  EXPECT_EQ(RunGraphReference(open->eval, in).outputs.at("logits").data,
            RunGraphReference(fixed->eval, in).outputs.at("logits").data);
}

TEST(ImportedAxes, ATokenOfOneSampleIsNoneOfSeveral) {
  ModelProto m = onnx::EmptyModel();
  onnx::AddInput(&m, "x", {1, 2, 3});
  AddWeights(&m, "token", {1, 1, 3});
  AddWeights(&m, "w", {9, 3});
  onnx::AddNode(&m, "Concat", {"token", "x"}, {"tokens"})->set_name("tokens");
  onnx::SetInt(m.mutable_graph()->mutable_node(0), "axis", 1);
  onnx::AddNode(&m, "Flatten", {"tokens"}, {"flat"});
  onnx::AddNode(&m, "MatMul", {"flat", "w"}, {"y"});
  onnx::AddOutput(&m, "y");
  Job job = {.sample = {.input_shape = {2, 3}, .classes = 3}};
  const std::string refusal = Refused(m, job);
  EXPECT_THAT(refusal, HasSubstr("model.onnx.path: Concat tokens: "));
  EXPECT_THAT(refusal, HasSubstr("export it with an open batch"));
  job.batch = 1;
  EXPECT_TRUE(Build(m, job).ok());
}

// Before opset 13 a softmax is over all axes from its own on.
TEST(ImportedAxes, AnOldSoftmaxOfPixelsIsNotTheLosss) {
  const auto chooses = [](bool pooled, int64_t axis) {
    ModelProto m = onnx::EmptyModel(11);
    onnx::AddInput(&m, "x", {-1, 2, 6, 5});
    AddWeights(&m, "w", {3, 2, 1, 1});
    onnx::AddNode(&m, "Conv", {"x", "w"}, {"a"});
    if (pooled) onnx::AddNode(&m, "GlobalAveragePool", {"a"}, {"b"});
    onnx::AddNode(&m, "Softmax", {pooled ? "b" : "a"}, {"y"})->set_name("choice");
    onnx::SetInt(m.mutable_graph()->mutable_node(pooled ? 2 : 1), "axis", axis);
    onnx::AddOutput(&m, "y");
    return m;
  };
  const Job pixels = {.sample = {.input_shape = {6, 5, 2}, .classes = 3, .label_shape = {30}}};
  EXPECT_THAT(Refused(chooses(false, 1), pixels), HasSubstr("model.onnx.outputs: [softmax] at the end is over axis 1"));
  EXPECT_THAT(Refused(chooses(false, 3), pixels), HasSubstr("model.onnx.outputs: [softmax] at the end is over axis"));
  EXPECT_TRUE(Build(chooses(false, 1), {.fields = "outputs: 'a'", .sample = pixels.sample}).ok());
  // Of one pixel it is over the classes.
  const auto model = Build(chooses(true, 1));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(CountOps(model->eval, ir::OpKind::kSoftmax), 0);
}

}  // namespace
}  // namespace ampd::models
