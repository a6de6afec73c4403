// On real files, where ../shared/data is.
#include <array>

#include "gmock/gmock.h"
#include "tests/unit/engine/data/data_folder.h"

namespace ampd::data {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class RealDataTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(roots_[0])) GTEST_SKIP() << "no real data: " << roots_[0] << " is absent";
  }
  static std::array<int64_t, 10> CountLabels(const Dataset& dataset) {
    std::array<int64_t, 10> count{};
    for (int64_t i = 0; i < dataset.size(); ++i) ++count.at(static_cast<size_t>(dataset.ReadLabel(i)));
    return count;
  }
  static double Mean(const Dataset& dataset) {
    std::vector<float> input(static_cast<size_t>(dataset.info().input_elements()));
    double sum = 0;
    for (int64_t i = 0; i < dataset.size(); ++i) {
      dataset.ReadInput(i, absl::MakeSpan(input));
      for (float v : input) sum += v;
    }
    return sum / static_cast<double>(dataset.size()) / static_cast<double>(input.size());
  }
  const std::vector<std::string> roots_ = {std::filesystem::absolute("../shared/data").string()};
};

TEST_F(RealDataTest, FashionMnist) {
  v1::DatasetSpec spec;
  spec.mutable_idx()->set_images("fashion_mnist/train-images-idx3-ubyte.gz");
  spec.mutable_idx()->set_labels("fashion_mnist/train-labels-idx1-ubyte.gz");
  const auto info = DescribeDataset(spec, roots_, false);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->size, 60000);
  EXPECT_EQ(info->classes, 10);
  const auto train = OpenDataset(spec, roots_, false);
  ASSERT_TRUE(train.ok()) << train.status();
  EXPECT_THAT((*train)->info().input_shape, ElementsAre(28, 28, 1));
  EXPECT_THAT(CountLabels(**train), Each(6000));
  EXPECT_NEAR(Mean(**train) / 255, 0.2860, 5e-5);  // the published mean of the training set
  std::vector<int32_t> labels;
  for (int64_t i = 0; i < 8; ++i) labels.push_back((*train)->ReadLabel(i));
  EXPECT_THAT(labels, ElementsAre(9, 0, 0, 3, 0, 2, 7, 2));
}

TEST_F(RealDataTest, FashionMnistWithImagesAndLabelsOfOtherSets) {
  v1::DatasetSpec spec;
  spec.mutable_idx()->set_images("fashion_mnist/train-images-idx3-ubyte.gz");
  spec.mutable_idx()->set_labels("fashion_mnist/t10k-labels-idx1-ubyte.gz");
  EXPECT_EQ(OpenDataset(spec, roots_, false).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(RealDataTest, Cifar10) {
  v1::DatasetSpec spec;
  spec.mutable_cifar10()->add_paths("cifar10_bin/test_batch.bin");
  const auto test = OpenDataset(spec, roots_, false);
  ASSERT_TRUE(test.ok()) << test.status();
  EXPECT_EQ((*test)->size(), 2000);
  EXPECT_THAT(CountLabels(**test), Each(200));
  EXPECT_NEAR(Mean(**test) / 255, 0.473, 0.01);  // CIFAR-10's mean over all channels
}

// None is damaged. 22 of the photographs are stored in grayscale; one stored in colour has none.
TEST_F(RealDataTest, Imagenette) {
  v1::DataSpec data;
  data.mutable_train()->mutable_image_folder()->set_path("imagenette224/train");
  data.mutable_eval()->mutable_image_folder()->set_path("imagenette224/val");
  data.mutable_image()->set_size(32);
  int64_t gray = 0;
  for (const bool is_eval : {false, true}) {
    const auto dataset = OpenDataset(data, roots_, is_eval);
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    EXPECT_THAT(CountLabels(**dataset), Each(is_eval ? 40 : 120));
    std::vector<float> image(32 * 32 * 3);
    for (int64_t i = 0; i < (*dataset)->size(); ++i) {
      const absl::Status status = (*dataset)->ReadSample(i, nullptr, absl::MakeSpan(image));
      ASSERT_TRUE(status.ok()) << status;
      bool same = true;
      for (size_t p = 0; p < image.size(); p += 3) same = same && image[p] == image[p + 1] && image[p] == image[p + 2];
      gray += same ? 1 : 0;
    }
  }
  EXPECT_EQ(gray, 22 + 1);
}

TEST_F(RealDataTest, QuickDraw) {
  v1::DatasetSpec spec;
  spec.mutable_quickdraw()->set_path("quickdraw");
  spec.mutable_quickdraw()->set_skip_per_class(1900);
  const auto dataset = OpenDataset(spec, roots_, false);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->info().classes, 15);
  EXPECT_EQ((*dataset)->size(), 15 * 100);
}

}  // namespace
}  // namespace ampd::data
