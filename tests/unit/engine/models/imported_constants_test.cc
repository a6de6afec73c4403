// Which tensors and inputs of a file belong to what is trained.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/models/imported_jobs.h"

namespace ampd::models {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Numbers of which every third is `other`, the first among them.
Proto Thirds(const std::string& name, const std::vector<int64_t>& shape, float one, float other) {
  Proto proto = onnx::Floats(name, shape);
  for (int i = 0; i < proto.float_data_size(); ++i) proto.set_float_data(i, i % 3 == 0 ? other : one);
  return proto;
}

TEST(ImportedConstants, MasksOfLargeNumbersAreNotTrained) {
  const auto parameters = [](float one, float other) {
    ModelProto m = onnx::EmptyModel();
    onnx::AddInput(&m, "x", {-1, 4, 3});
    *m.mutable_graph()->add_initializer() = Thirds("mask", {4, 4}, one, other);
    AddWeights(&m, "w", {12, 3});
    onnx::SetInts(onnx::AddNode(&m, "Transpose", {"x"}, {"t"}), "perm", {0, 2, 1});
    onnx::AddNode(&m, "MatMul", {"x", "t"}, {"scores"});
    onnx::AddNode(&m, "Add", {"scores", "mask"}, {"seen"});
    onnx::AddNode(&m, "Softmax", {"seen"}, {"p"});
    onnx::AddNode(&m, "MatMul", {"p", "x"}, {"a"});
    onnx::AddNode(&m, "Flatten", {"a"}, {"f"});
    onnx::AddNode(&m, "MatMul", {"f", "w"}, {"y"});
    onnx::AddOutput(&m, "y");
    const auto model = Build(m, {.sample = {.input_shape = {4, 3}, .classes = 3}});
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? Names(model->phases[0].train.parameters) : std::vector<std::string>();
  };
  for (const float filled : {-1e9f, 1000.f, -3.4e38f}) {
    EXPECT_THAT(parameters(0, filled), ElementsAre("w")) << filled;
    EXPECT_THAT(parameters(filled, 0), ElementsAre("w")) << filled;
    EXPECT_THAT(parameters(filled, 0.5), ElementsAre("mask", "w")) << filled;
  }
  EXPECT_THAT(parameters(0, 999), ElementsAre("mask", "w"));
  EXPECT_THAT(parameters(0, 0), ElementsAre("mask", "w"));
}

// Variances of pixels from 0 to 255 are large.
TEST(ImportedConstants, LargeNumbersThatAnOperationWeighsWithAreNoMask) {
  ModelProto m = Convnet(0, {-1, 16});
  for (Proto& tensor : *m.mutable_graph()->mutable_initializer()) {
    if (tensor.name() == "bn.running_var") tensor = Thirds(tensor.name(), {4}, 5000, 3000);
    if (tensor.name() == "fc.weight") tensor = Thirds(tensor.name(), {3, 16}, 0, 1000);
  }
  const auto model = Build(m);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(Names(model->phases[0].train.states), Contains("bn.running_var"));
  EXPECT_THAT(Names(model->phases[0].train.parameters), Contains("fc.weight"));
}

TEST(ImportedConstants, WhereNothingIsTrainedItSaysWhy) {
  ModelProto m = onnx::EmptyModel();
  onnx::AddInput(&m, "x", {-1, 3});
  Proto half = onnx::Floats("half", {3, 3});
  half.set_data_type(Proto::FLOAT16);
  half.clear_float_data();
  for (int i = 0; i < 9; ++i) half.add_int32_data(0x3800 + i);
  *m.mutable_graph()->add_initializer() = half;
  onnx::SetInt(onnx::AddNode(&m, "Cast", {"half"}, {"whole"}), "to", Proto::FLOAT);
  onnx::AddNode(&m, "MatMul", {"x", "whole"}, {"y"});
  onnx::AddOutput(&m, "y");
  EXPECT_EQ(Refused(m, {.sample = {.input_shape = {3}, .classes = 3}}),
            "model.onnx.path: has no parameters to train; tensors of the ONNX file that stand where weights do and are "
            "not trained, for they are no FLOAT initializers: half [3, 3]");
}

TEST(ImportedConstants, StatisticsOfAFunctionAreNotMoved) {
  ModelProto m = Convnet(0, {-1, 16});
  ::onnx::FunctionProto* f = m.add_functions();
  f->set_domain("local");
  f->set_name("Norm");
  f->add_opset_import()->set_version(17);
  for (const char* input : {"x", "scale", "bias", "mean", "variance"}) f->add_input(input);
  f->add_output("y");
  onnx::AddNode(f->mutable_node(), "BatchNormalization", {"x", "scale", "bias", "mean", "variance"}, {"y"});
  m.mutable_graph()->mutable_node(1)->set_op_type("Norm");
  m.mutable_graph()->mutable_node(1)->set_domain("local");
  EXPECT_THAT(Refused(m), HasSubstr("the mean is parameter bn.running_mean, which is read within a function of the "
                                    "model"));
  EXPECT_TRUE(Build(m, {.fields = "freeze: 'bn.running_*'"}).ok());
}

TEST(ImportedConstants, InputsOfWhatIsNotTrainedAreNotAskedFor) {
  ModelProto m = Convnet(0, {-1, 16});
  onnx::AddInput(&m, "threshold", {-1, 3});
  onnx::AddNode(&m, "Sub", {"probabilities", "threshold"}, {"margin"});
  onnx::AddOutput(&m, "margin");
  const auto model = Build(m);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(Build(m, {.fields = "input: 'image' outputs: 'logits'"}).ok());
  EXPECT_EQ(Refused(m, {.fields = "outputs: 'margin'"}),
            "model.onnx.input: networks of more than one input are not supported yet, has 'image', 'threshold'");
  EXPECT_EQ(Refused(m, {.fields = "input: 'threshold' outputs: 'logits'"}),
            "model.onnx.input: what is trained does not depend on 'threshold', but on 'image'");
}

}  // namespace
}  // namespace ampd::models
