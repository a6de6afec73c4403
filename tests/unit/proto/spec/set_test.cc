#include <string>

#include "ampd/v1/job.pb.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "proto/spec/yaml.h"

namespace ampd {
namespace {

v1::JobSpec Example() {
  v1::JobSpec spec;
  EXPECT_EQ(ParseYaml(R"(
model:
  layers: [{conv2d: {filters: 4, kernel: [3, 3]}}, {flatten: {}}, {dense: {units: 10}}]
precision: {mode: FP16}
optimizer: {adamw: {learning_rate: 0.1}}
labels: {team: vision}
)",
                      "f", &spec),
            absl::OkStatus());
  return spec;
}

v1::JobSpec With(const std::string& assignment) {
  v1::JobSpec spec = Example();
  EXPECT_EQ(ApplySet(&spec, assignment), absl::OkStatus());
  return spec;
}

TEST(ApplySetTest, SetsEveryKindOfField) {
  EXPECT_EQ(With("precision.mode=bf16").precision().mode(), v1::PrecisionSpec::BF16);
  EXPECT_EQ(With("model.layers[2].dense.units=5").model().layers(2).dense().units(), 5);
  EXPECT_EQ(With("name=a=b").name(), "a=b");
  EXPECT_EQ(With("train.batch_size=64").train().batch_size(), 64);
  EXPECT_EQ(With("precision.loss_scale.init=1e30").precision().loss_scale().init(), 1e30);
  EXPECT_EQ(With("model.layers[0].conv2d.kernel=[5, 7]").model().layers(0).conv2d().kernel_size(), 2);
  EXPECT_EQ(With("model.layers[0].conv2d.kernel=5").model().layers(0).conv2d().kernel_size(), 1) << "a square";
  EXPECT_EQ(With("model.layers[0].conv2d.kernel[1]=7").model().layers(0).conv2d().kernel(1), 7);
  EXPECT_EQ(With("model.layers[0].conv2d.kernel[0]=7").model().layers(0).conv2d().kernel(1), 3);
  EXPECT_EQ(With("labels.run.a=x").labels().at("run.a"), "x");
  EXPECT_EQ(With("labels.team=speech").labels().at("team"), "speech");
  EXPECT_EQ(With("data.train={glyphs: {samples: 5}}").data().train().glyphs().samples(), 5);
}

TEST(ApplySetTest, AppendsReplacesAndClears) {
  const v1::JobSpec appended = With("model.layers[3]={relu: {}}");
  ASSERT_EQ(appended.model().layers_size(), 4);
  EXPECT_TRUE(appended.model().layers(3).has_relu());
  const v1::JobSpec replaced = With("model.layers[1]={relu: {}}");
  ASSERT_EQ(replaced.model().layers_size(), 3);
  EXPECT_TRUE(replaced.model().layers(1).has_relu());
  EXPECT_TRUE(replaced.model().layers(2).has_dense());
  EXPECT_FALSE(With("precision=null").has_precision());
  EXPECT_TRUE(With("optimizer.sgd={}").optimizer().has_sgd());
}

TEST(ApplySetTest, RefusesAndLeavesTheMessageAlone) {
  const struct {
    const char* assignment;
    const char* error;
  } kCases[] = {
      {"precision.mode", "--set precision.mode: expected PATH=VALUE"},
      {"=5", "--set =5: expected PATH=VALUE"},
      {"precision.mod=FP16", "--set precision.mod: no such field; did you mean mode?"},
      {"train.batch_size=x", "--set train.batch_size: expected an integer, got 'x'"},
      {"train={batch_sise: 3}", "--set train.batch_sise: no such field; did you mean batch_size?"},
      {"train.learning_rate=1",
       "--set train.learning_rate: no such field; did you mean optimizer.<kind>.learning_rate?"},
      {"name.x=1", "--set name.x: name has no fields"},
      {"name[0]=a", "--set name[0]: name is not a list"},
      {"labels[0]=a", "--set labels[0]: labels is not a list"},
      {"model.layers[0].conv2d.kernel=x",
       "--set model.layers[0].conv2d.kernel: expected a number or a list of numbers, got 'x'"},
      {"labels.a=5", "--set labels.a: expected a string, got the number 5; write \"5\" in quotes"},
      {"model.layers.dense.units=1", "--set model.layers.dense.units: layers is a list; name an element, such as [0]"},
      {"model.layers[9].dense.units=1", "--set model.layers[9].dense.units: the list layers has 3 elements"},
      {"model.layers[9]={}", "--set model.layers[9]: the list layers has 3 elements"},
      {"model.layers[-1]={}", "--set model.layers[-1]: no list index: '-1'"},
      {"model.layers[99999999999]={}", "--set model.layers[99999999999]: no list index: '99999999999'"},
      {"model.layers[1={}", "--set model.layers[1: a list index is written like layers[2]"},
      {"optimizer.sgd.learning_rate=1",
       "--set optimizer.sgd.learning_rate: adamw is set, and only one of its kind may be; set sgd as a whole to "
       "replace it"},
      {"model.layers[3].dense.units=x", "--set model.layers[3].dense.units: expected an integer, got 'x'"},
      {"name=[", "--set name:1: end of sequence flow not found"},
  };
  for (const auto& c : kCases) {
    v1::JobSpec spec = Example();
    const absl::Status status = ApplySet(&spec, c.assignment);
    EXPECT_EQ(status.message(), c.error);
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(spec, Example())) << c.assignment;
  }
}

}  // namespace
}  // namespace ampd
