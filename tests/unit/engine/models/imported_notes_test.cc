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
  v1::OnnxModel spec;
  spec.set_path("a");
  spec.add_outputs(last);
  EXPECT_THAT(DescribeGuesses(spec),
              ElementsAre("single numbers of the ONNX file that are trained (model.onnx.freeze holds them): head.scale",
                          "tensors of the ONNX file that are trained and may be tables (model.onnx.freeze holds them): "
                          "table [1, 3]",
                          "constants of the ONNX file, which are not trained: eps"));
  spec.add_freeze("*");
  EXPECT_THAT(DescribeGuesses(spec), ElementsAre("constants of the ONNX file, which are not trained: eps"));
  spec.set_outputs(0, "logits");
  EXPECT_THAT(DescribeGuesses(spec), ElementsAre());
  spec.set_path("nothing");
  EXPECT_THAT(DescribeGuesses(spec), ElementsAre());
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
  v1::OnnxModel spec;
  spec.set_path("a");
  spec.add_outputs("y");
  const auto model = Build(proto, {.fields = "outputs: 'y' freeze: 'head_scale'"});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(DescribeGuesses(spec),
              ElementsAre("tensors of the ONNX file that are trained and may be tables (model.onnx.freeze holds them): "
                          "head_scale [1, 3]"));
  spec.add_freeze("head_scale");
  EXPECT_THAT(DescribeGuesses(spec), ElementsAre());
}

}  // namespace
}  // namespace ampd::models
