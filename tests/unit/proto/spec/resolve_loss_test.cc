// Losses in their job.
#include <string>

#include "gtest/gtest.h"
#include "tests/unit/proto/spec/resolve_test_util.h"

namespace ampd {
namespace {

TEST(ResolveLossTest, ZeroWeightsAreNotSmoothedWhereABatchIsCut) {
  const std::string refused =
      "model.loss.softmax_cross_entropy.class_weights: cannot have a 0 together with label_smoothing where a batch is "
      "cut (train.micro_batch_size below train.batch_size, or several resources.gpus)";
  const auto violated = [](double smoothing, float weight, int64_t micro_batch, int gpus) {
    v1::JobSpec spec = Minimal();
    v1::SoftmaxCrossEntropyLoss& loss = *spec.mutable_model()->mutable_loss()->mutable_softmax_cross_entropy();
    loss.set_label_smoothing(smoothing);
    for (const float one : {1.0f, weight}) loss.add_class_weights(one);
    spec.mutable_train()->set_batch_size(8);
    spec.mutable_train()->set_micro_batch_size(micro_batch);
    spec.mutable_resources()->set_gpus(gpus);
    return Violated(spec);
  };
  EXPECT_EQ(violated(0.1, 0, 4, 1), refused);
  EXPECT_EQ(violated(0.1, 0, 4, 2), refused);
  EXPECT_EQ(violated(0.1, 0, 8, 1), "");
  EXPECT_EQ(violated(0.1, 0.5, 4, 2), "");
  EXPECT_EQ(violated(0, 0, 4, 2), "");
}

}  // namespace
}  // namespace ampd
