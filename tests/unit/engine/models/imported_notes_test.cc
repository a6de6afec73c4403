// What a job tells of an imported network before it trains: what was guessed, and that it is so.
#include "engine/models/imported_notes.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/models/imported_jobs.h"

namespace ampd::models {
namespace {

using ::testing::ElementsAre;

TEST(Imported, TellsWhatItGuessed) {
  ModelProto proto = Convnet(0, {-1, 16});
  AddWeights(&proto, "head.scale", {});
  AddWeights(&proto, "table", {1, 3});
  AddWeights(&proto, "eps", {1});
  AddWeights(&proto, "unread", {1, 3});
  std::string last = "logits";
  for (const char* name : {"head.scale", "table", "eps"}) {
    onnx::AddNode(&proto, "Mul", {last, name}, {last + "'"});
    last += "'";
  }
  onnx::AddNode(&proto, "Mul", {last, "unread"}, {"elsewhere"});
  const std::string fields = "outputs: \"" + last + "\" ";
  const auto model = Build(proto, {.fields = fields});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(Names(model->phases[0].train.parameters), ::testing::IsSupersetOf({"head.scale", "table"}));
  v1::ModelSpec model_spec;
  v1::OnnxModel& spec = *model_spec.mutable_onnx();
  spec.set_path("a");
  spec.add_outputs(last);
  EXPECT_THAT(DescribeGuesses(model_spec),
              ElementsAre("single numbers of the ONNX file that are trained (model.onnx.freeze holds them): head.scale",
                          "tensors of the ONNX file that are trained and may be tables (model.onnx.freeze holds them): "
                          "table [1, 3]",
                          "constants of the ONNX file, which are not trained: eps"));
  spec.add_freeze("*");
  EXPECT_THAT(DescribeGuesses(model_spec), ElementsAre("constants of the ONNX file, which are not trained: eps"));
  spec.set_outputs(0, "logits");
  EXPECT_THAT(DescribeGuesses(model_spec), ElementsAre());
  spec.set_path("nothing");
  EXPECT_THAT(DescribeGuesses(model_spec), ElementsAre());
}

TEST(Imported, TellsOfWeightsThatAreNoInitializersOfFloats) {
  ModelProto proto = Convnet(0, {-1, 16});
  auto* constant = onnx::AddNode(&proto, "Constant", {}, {"last.weight"})->add_attribute();
  constant->set_name("value");
  *constant->mutable_t() = Weights("", {3, 3});
  Proto half = onnx::Floats("half", {3, 3});
  half.set_data_type(Proto::FLOAT16);
  half.clear_float_data();
  for (int i = 0; i < 9; ++i) half.add_int32_data(0x3800 + i);
  *proto.mutable_graph()->add_initializer() = half;
  onnx::SetInt(onnx::AddNode(&proto, "Cast", {"half"}, {"whole"}), "to", Proto::FLOAT);
  onnx::AddNode(&proto, "MatMul", {"logits", "last.weight"}, {"a"});
  onnx::AddNode(&proto, "MatMul", {"a", "whole"}, {"y"});
  const auto model = Build(proto, {.fields = "outputs: 'y'"});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(Names(model->phases[0].train.parameters), ::testing::Contains("last.weight"));
  EXPECT_EQ(Values().count("last.weight"), 1u);
  v1::ModelSpec model_spec;
  v1::OnnxModel& spec = *model_spec.mutable_onnx();
  spec.set_path("a");
  spec.add_outputs("y");
  const std::string frozen =
      "tensors of the ONNX file that stand where weights do and are not trained, for they are no FLOAT initializers: ";
  EXPECT_THAT(DescribeGuesses(model_spec), ElementsAre("weights in Constant nodes of the ONNX file that are trained "
                                                       "(model.onnx.freeze holds them): last.weight [3, 3]",
                                                       frozen + "half [3, 3]"));
  spec.add_freeze("last.*");
  EXPECT_THAT(DescribeGuesses(model_spec), ElementsAre(frozen + "half [3, 3]"));
  spec.set_outputs(0, "logits");
  EXPECT_THAT(DescribeGuesses(model_spec), ElementsAre());
}

TEST(Imported, TellsOfAnActivationThatTheLossDoesNotExpect) {
  SampleInfo floats = kImages;
  floats.classes = 0;
  floats.target_features = 3;
  const auto notes = [&](const std::string& activation, const std::string& loss, const std::string& fields) {
    ModelProto proto = Convnet(0, {-1, 16});
    proto.mutable_graph()->mutable_node(6)->set_op_type(activation);
    onnx::AddNode(&proto, "Identity", {"probabilities"}, {"same"});
    onnx::AddOutput(&proto, "same");
    const Job job = {.fields = fields, .sample = loss == "softmax_cross_entropy" ? kImages : floats, .loss = loss};
    const auto model = Build(proto, job);
    EXPECT_TRUE(model.ok()) << model.status();
    return DescribeGuesses(Resolve(fields, "mode: FP32", loss).proto().model());
  };
  for (const std::string fields : {"", "outputs: 'same'"}) {
    EXPECT_THAT(
        notes("Sigmoid", "softmax_cross_entropy", fields),
        ElementsAre("the output ends in Sigmoid, which stays; the loss takes logits; name the value before it in "
                    "model.onnx.outputs"));
    for (const std::string activation : {"Softmax", "LogSoftmax"}) {
      EXPECT_THAT(notes(activation, "sigmoid_cross_entropy", fields),
                  ElementsAre("the output ends in " + activation +
                              ", which stays; the loss takes logits; name the value before it in model.onnx.outputs"));
      EXPECT_THAT(notes(activation, "softmax_cross_entropy", fields), ElementsAre());
    }
    EXPECT_THAT(notes("Sigmoid", "sigmoid_cross_entropy", fields), ElementsAre());
    EXPECT_THAT(notes("Sigmoid", "mean_squared_error", fields), ElementsAre());
  }
  EXPECT_THAT(notes("Sigmoid", "softmax_cross_entropy", "outputs: 'logits'"), ElementsAre());
}

TEST(Imported, GuessesAreWhatIsTrained) {
  ModelProto proto = Convnet(0, {-1, 16});
  // A trained weight that is read turned; what has to be a constant; a name that checkpoints cannot have.
  AddWeights(&proto, "turned", {3, 3});
  AddWeights(&proto, "head scale", {1, 3});
  Proto scales = onnx::Floats("scales", {2});
  for (int i = 0; i < 2; ++i) scales.set_float_data(i, 1);
  *proto.mutable_graph()->add_initializer() = scales;
  onnx::AddNode(&proto, "Transpose", {"turned"}, {"t"});
  onnx::AddNode(&proto, "MatMul", {"logits", "t"}, {"a"});
  onnx::AddNode(&proto, "Resize", {"a", "", "scales"}, {"b"});
  onnx::AddNode(&proto, "Mul", {"b", "head scale"}, {"y"});
  v1::ModelSpec model_spec;
  v1::OnnxModel& spec = *model_spec.mutable_onnx();
  spec.set_path("a");
  spec.add_outputs("y");
  const auto model = Build(proto, {.fields = "outputs: 'y' freeze: 'head_scale'"});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(DescribeGuesses(model_spec),
              ElementsAre("tensors of the ONNX file that are trained and may be tables (model.onnx.freeze holds them): "
                          "head_scale [1, 3]"));
  spec.add_freeze("head_scale");
  EXPECT_THAT(DescribeGuesses(model_spec), ElementsAre());
}

}  // namespace
}  // namespace ampd::models
