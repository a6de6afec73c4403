#include "gmock/gmock.h"
#include "tests/unit/engine/data/data_folder.h"

namespace ampd::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Planes of red, green and blue; pixel p of plane c is (base + 100 c + p) modulo 256.
std::string Record(uint8_t label, int base) {
  std::string s(1, static_cast<char>(label));
  for (int c = 0; c < 3; ++c) {
    for (int p = 0; p < 1024; ++p) s.push_back(static_cast<char>(base + 100 * c + p));
  }
  return s;
}

class Cifar10Test : public DataFolder {
 protected:
  Cifar10Test() {
    Write("one", Record(3, 0) + Record(9, 7));
    Write("two", Record(0, 50));
    spec_.mutable_cifar10()->add_paths("one");
    spec_.mutable_cifar10()->add_paths("two");
  }
  v1::DatasetSpec spec_;
};

TEST_F(Cifar10Test, ReadsFilesInOrderAndInterleavesThePlanes) {
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 3);
  EXPECT_EQ((*dataset)->info().classes, 10);
  EXPECT_THAT((*dataset)->info().input_shape, ElementsAre(32, 32, 3));
  EXPECT_EQ((*dataset)->ReadLabel(0), 3);
  EXPECT_EQ((*dataset)->ReadLabel(1), 9);
  EXPECT_EQ((*dataset)->ReadLabel(2), 0);
  const std::vector<float> pixels = Input(**dataset, 1);
  for (int y : {0, 1, 31}) {
    for (int x : {0, 5, 31}) {
      for (int c = 0; c < 3; ++c) {
        EXPECT_EQ(pixels[static_cast<size_t>((y * 32 + x) * 3 + c)], (7 + 100 * c + y * 32 + x) % 256);
      }
    }
  }
}

TEST_F(Cifar10Test, Describes) {
  const auto info = Describe(spec_);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->size, 3);
  EXPECT_EQ(info->classes, 10);
}

TEST_F(Cifar10Test, RefusesALabelAboveNine) {
  Write("two", Record(5, 0) + Record(10, 0));
  const auto dataset = Open(spec_);
  EXPECT_EQ(dataset.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(dataset.status().message()),
              AllOf(HasSubstr("two"), HasSubstr("record 1"), HasSubstr("label 10")));
}

TEST_F(Cifar10Test, RefusesSizesThatAreNoMultipleOfARecord) {
  for (const std::string& bytes : {std::string(), Record(1, 0).substr(1), Record(1, 0) + "x"}) {
    Write("two", bytes);
    EXPECT_EQ(Open(spec_).status().code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(Describe(spec_).status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(Open(spec_).status().message()), AllOf(HasSubstr("two"), HasSubstr("3073")));
  }
}

TEST_F(Cifar10Test, NeedsAPath) {
  spec_.mutable_cifar10()->clear_paths();
  EXPECT_EQ(Open(spec_).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ampd::data
