#include "gmock/gmock.h"
#include "tests/unit/engine/data/data_folder.h"

namespace ampd::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class IdxTest : public DataFolder {
 protected:
  IdxTest() {
    spec_.mutable_idx()->set_images("images");
    spec_.mutable_idx()->set_labels("labels");
    Write("images", images_);
    Write("labels", labels_);
  }
  std::string Message() { return std::string(Open(spec_).status().message()); }

  // Three images of 2x2 pixels.
  const std::string images_ =
      IdxFileBytes({3, 2, 2}, std::string("\x00\x01\x02\x03\x10\x11\x12\x13\xfc\xfd\xfe\xff", 12));
  const std::string labels_ = IdxFileBytes({3}, std::string("\x04\x00\x02", 3));
  v1::DatasetSpec spec_;
};

TEST_F(IdxTest, ReadsImagesAndLabels) {
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const DatasetInfo& info = (*dataset)->info();
  EXPECT_EQ(info.size, 3);
  EXPECT_THAT(info.input_shape, ElementsAre(2, 2, 1));
  EXPECT_TRUE(info.byte_inputs);
  EXPECT_EQ(info.classes, 5);
  EXPECT_THAT(Input(**dataset, 0), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Input(**dataset, 2), ElementsAre(252, 253, 254, 255));
  EXPECT_EQ((*dataset)->ReadLabel(0), 4);
  EXPECT_EQ((*dataset)->ReadLabel(2), 2);
}

TEST_F(IdxTest, DescribesWithoutReadingTheImages) {
  const auto info = Describe(spec_);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->size, 3);
  EXPECT_THAT(info->input_shape, ElementsAre(2, 2, 1));
  EXPECT_EQ(info->classes, 5);
}

TEST_F(IdxTest, LimitShortensButKeepsTheClasses) {
  spec_.set_limit(2);
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 2);
  EXPECT_EQ((*dataset)->info().classes, 5);
  EXPECT_EQ(Describe(spec_)->size, 2);
  spec_.set_limit(99);
  EXPECT_EQ((*Open(spec_))->size(), 3);
  EXPECT_EQ(Describe(spec_)->size, 3);
  spec_.set_limit(-1);
  EXPECT_EQ(Open(spec_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(IdxTest, ReadsChannels) {
  Write("images", IdxFileBytes({3, 1, 2, 2}, "abcdefghijkl"));
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_THAT((*dataset)->info().input_shape, ElementsAre(1, 2, 2));
  EXPECT_THAT(Input(**dataset, 1), ElementsAre('e', 'f', 'g', 'h'));
}

TEST_F(IdxTest, TellsGzipByContent) {
  Write("images", Deflated(images_, 31));
  Write("labels", Deflated(labels_, 31));
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_THAT(Input(**dataset, 1), ElementsAre(16, 17, 18, 19));
  EXPECT_EQ(Describe(spec_)->size, 3);
}

TEST_F(IdxTest, ReadsGzipOfSeveralMembers) {
  Write("images", Deflated(images_.substr(0, 18), 31) + Deflated(images_.substr(18), 31));
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_THAT(Input(**dataset, 2), ElementsAre(252, 253, 254, 255));
}

TEST_F(IdxTest, RefusesExchangedFiles) {
  spec_.mutable_idx()->set_images("labels");
  spec_.mutable_idx()->set_labels("images");
  EXPECT_EQ(Open(spec_).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Message(), AllOf(HasSubstr("labels: "), HasSubstr("0x00000801"), HasSubstr("0x00000803")));
}

TEST_F(IdxTest, RefusesCountsThatDiffer) {
  Write("labels", IdxFileBytes({2}, std::string(2, '\0')));
  EXPECT_EQ(Open(spec_).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Message(), AllOf(HasSubstr("3 images"), HasSubstr("2 labels")));
  EXPECT_FALSE(Describe(spec_).ok());
}

TEST_F(IdxTest, RefusesOtherTypesEmptyAndTrailingBytes) {
  std::string floats = images_;
  floats[2] = 0x0d;
  Write("images", floats);
  EXPECT_THAT(Message(), HasSubstr("0x00000d03"));
  Write("images", images_ + "x");
  EXPECT_THAT(Message(), HasSubstr("more bytes"));
  Write("images", Deflated(images_, 31) + "junk");
  EXPECT_EQ(Open(spec_).status().code(), absl::StatusCode::kDataLoss);
  Write("images", IdxFileBytes({0, 2, 2}, ""));
  EXPECT_THAT(Message(), HasSubstr("extent is 0"));
}

TEST_F(IdxTest, RefusesSizesThatTheFileCannotHold) {
  Write("images", IdxFileBytes({0xffffffff, 0xffffffff, 0xffffffff}, "x"));
  EXPECT_EQ(Open(spec_).status().code(), absl::StatusCode::kDataLoss);
  Write("images", Deflated(IdxFileBytes({3, 60000, 60000}, "x"), 31));
  EXPECT_EQ(Open(spec_).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Message(), HasSubstr("10800000000"));
}

TEST_F(IdxTest, EndsWellOnDamagedImages) { Torment("images", images_, spec_); }
TEST_F(IdxTest, EndsWellOnDamagedLabels) { Torment("labels", labels_, spec_); }
TEST_F(IdxTest, EndsWellOnDamagedGzip) { Torment("images", Deflated(images_, 31), spec_); }

TEST_F(IdxTest, SeesDamageInGzip) {
  std::string damaged = Deflated(images_, 31);
  damaged[damaged.size() - 8] ^= 1;  // its checksum
  Write("images", damaged);
  EXPECT_EQ(Open(spec_).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(IdxTest, NamesTheMissingFile) {
  spec_.mutable_idx()->set_labels("nothing");
  EXPECT_EQ(Open(spec_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(), HasSubstr("nothing"));
}

TEST_F(IdxTest, RefusesSpecsWithoutSupportedSource) {
  EXPECT_EQ(Open(v1::DatasetSpec()).status().code(), absl::StatusCode::kInvalidArgument);
  v1::DatasetSpec folder;
  folder.mutable_image_folder()->set_path("x");
  // It needs the job's data.image.
  EXPECT_EQ(Open(folder).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Describe(folder).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ampd::data
