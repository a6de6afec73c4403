#include "engine/data/text.h"

#include <limits>

#include "gmock/gmock.h"
#include "tests/unit/engine/data/data_folder.h"

namespace ampd::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int32_t> Labels(const Dataset& dataset, int64_t i) {
  std::vector<int32_t> labels(static_cast<size_t>(dataset.info().label_count));
  dataset.ReadLabels(i, absl::MakeSpan(labels));
  return labels;
}

class TextTest : public DataFolder {
 protected:
  TextTest() {
    spec_.mutable_text()->set_path("file");
    spec_.mutable_text()->set_sequence_length(4);
    Write("file", "abcdefghij");
  }
  v1::TextDataset& text() { return *spec_.mutable_text(); }
  v1::DatasetSpec spec_;
};

TEST_F(TextTest, SamplesAreWindowsAndLabelsWhatFollows) {
  Write("file", std::string("a\xff\0defghij", 10));
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const DatasetInfo& info = (*dataset)->info();
  // A third window would need labels up to place 12.
  EXPECT_EQ(info.size, 2);
  EXPECT_THAT(info.input_shape, ElementsAre(4));
  EXPECT_FALSE(info.byte_inputs);
  EXPECT_EQ(info.classes, 256);
  EXPECT_EQ(info.label_count, 4);
  EXPECT_THAT(Input(**dataset, 0), ElementsAre('a', 255, 0, 'd'));
  EXPECT_THAT(Labels(**dataset, 0), ElementsAre(255, 0, 'd', 'e'));
  EXPECT_THAT(Input(**dataset, 1), ElementsAre('e', 'f', 'g', 'h'));
  EXPECT_THAT(Labels(**dataset, 1), ElementsAre('f', 'g', 'h', 'i'));
  // Windows share the text, however many there are.
  text().set_stride(1);
  EXPECT_EQ(Describe(spec_)->held_bytes, 10);
}

TEST_F(TextTest, TheLastWindowHasItsLabels) {
  // Counted by hand: windows begin at stride * i and end, with their last label, at place begin + 4.
  const std::vector<std::vector<int64_t>> bytes_stride_windows = {{5, 4, 1},  {8, 4, 1},  {9, 4, 2},   {10, 1, 6},
                                                                  {10, 3, 2}, {11, 3, 3}, {10, 100, 1}};
  for (const auto& row : bytes_stride_windows) {
    Write("file", std::string(static_cast<size_t>(row[0]), 'x'));
    text().set_stride(row[1]);
    const auto dataset = Open(spec_);
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    EXPECT_EQ((*dataset)->size(), row[2]) << row[0] << " bytes, stride " << row[1];
    EXPECT_EQ(Describe(spec_)->size, row[2]);
    ReadEverything(**dataset);
  }
}

TEST_F(TextTest, PartsThatMeetShareNoByte) {
  text().set_sequence_length(1);
  text().set_end(0.55);
  const auto front = Open(spec_);
  text().clear_end();
  text().set_begin(0.55);
  const auto back = Open(spec_);
  ASSERT_TRUE(front.ok() && back.ok()) << front.status() << back.status();
  EXPECT_EQ((*front)->size(), 4);
  EXPECT_THAT(Labels(**front, 3), ElementsAre('e'));
  EXPECT_EQ((*back)->size(), 4);
  EXPECT_THAT(Input(**back, 0), ElementsAre('f'));
  EXPECT_THAT(Labels(**back, 3), ElementsAre('j'));
}

TEST_F(TextTest, LimitKeepsTheFirst) {
  text().set_stride(1);
  spec_.set_limit(2);
  EXPECT_EQ((*Open(spec_))->size(), 2);
  EXPECT_EQ(Describe(spec_)->size, 2);
}

TEST_F(TextTest, RefusesWhatMakesNoSense) {
  const auto message = [&] {
    const absl::Status status = Open(spec_).status();
    EXPECT_EQ(Describe(spec_).status(), status);
    return std::string(status.message());
  };
  text().set_sequence_length(10);
  EXPECT_EQ(message(), "file: the part from begin to end holds 10 of 10 bytes; a sample and its last label need 11");
  text().set_sequence_length(4);
  text().set_begin(0.7);
  EXPECT_THAT(message(), HasSubstr("holds 3 of 10 bytes; a sample and its last label need 5"));
  text().set_end(0.7);
  EXPECT_THAT(message(), HasSubstr("begin and end are 0.7 and 0.7"));
  text().clear_begin();
  text().set_end(1.5);
  EXPECT_THAT(message(), HasSubstr("begin and end are 0 and 1.5"));
  text().set_end(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(message(), HasSubstr("0 <= begin < end <= 1"));
  text().clear_end();
  for (int64_t length : {int64_t{0}, int64_t{-1}, int64_t{1} << 40, std::numeric_limits<int64_t>::max()}) {
    text().set_sequence_length(length);
    EXPECT_THAT(message(), HasSubstr("sequence_length is"));
  }
  text().set_sequence_length(4);
  text().set_stride(-1);
  EXPECT_THAT(message(), HasSubstr("stride -1"));
  text().set_stride(std::numeric_limits<int64_t>::max());
  EXPECT_EQ((*Open(spec_))->size(), 1);
  Write("file", "");
  EXPECT_THAT(message(), HasSubstr("holds 0 of 0 bytes"));
}

TEST_F(TextTest, RefusesFilesThatAreNoText) {
  const std::string text = "to be, or not to be";
  const std::vector<std::pair<std::string, std::string>> kinds = {
      {NpyFileBytes("{'descr': '|u1', 'fortran_order': False, 'shape': (19,), }\n", text), "is a NumPy file"},
      {std::string("PK\3\4\x14\0\0\0", 8) + text, "is a zip archive"},
      {Deflated(text, 31), "is compressed by gzip"}};
  for (const auto& [bytes, what] : kinds) {
    Write("file", bytes);
    EXPECT_THAT(std::string(Open(spec_).status().message()), AllOf(HasSubstr(what), HasSubstr("expected plain text")));
    EXPECT_EQ(Describe(spec_).status(), Open(spec_).status());
    EXPECT_TRUE(absl::IsInvalidArgument(Open(spec_).status()));
  }
  Write("file", "PK is no archive, and neither is NUMPY");
  EXPECT_TRUE(Open(spec_).ok()) << Open(spec_).status();
}

class TokensTest : public DataFolder {
 protected:
  TokensTest() {
    spec_.mutable_tokens()->set_path("file");
    spec_.mutable_tokens()->set_sequence_length(2);
    spec_.mutable_tokens()->set_vocabulary(65536);
    WriteTokens({0, 1, 256, 65535, 50256});
  }
  void WriteTokens(const std::vector<int>& tokens) const {
    std::string bytes;
    for (int token : tokens) bytes += LittleEndian(static_cast<uint64_t>(token), 2);
    Write("file", bytes);
  }
  v1::DatasetSpec spec_;
};

TEST_F(TokensTest, ReadsTwoByteNumbers) {
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 2);
  EXPECT_EQ((*dataset)->info().classes, 65536);
  EXPECT_THAT(Input(**dataset, 0), ElementsAre(0, 1));
  EXPECT_THAT(Labels(**dataset, 0), ElementsAre(1, 256));
  EXPECT_THAT(Input(**dataset, 1), ElementsAre(256, 65535));
  EXPECT_THAT(Labels(**dataset, 1), ElementsAre(65535, 50256));
}

TEST_F(TokensTest, ATokenBeyondTheVocabularyIsNamedWithItsPlaceInTheFile) {
  spec_.mutable_tokens()->set_vocabulary(50257);
  EXPECT_EQ(Open(spec_).status().message(), "file: token 3 is 65535; vocabulary is 50257");
  EXPECT_TRUE(absl::IsDataLoss(Open(spec_).status()));
  WriteTokens({0, 0, 50256, 50257});
  spec_.mutable_tokens()->set_sequence_length(1);
  spec_.mutable_tokens()->set_begin(0.5);
  EXPECT_EQ(Open(spec_).status().message(), "file: token 3 is 50257; vocabulary is 50257");
  // What is not used is not judged.
  spec_.mutable_tokens()->set_begin(0.25);
  spec_.mutable_tokens()->set_end(0.75);
  EXPECT_TRUE(Open(spec_).ok()) << Open(spec_).status();
}

TEST_F(TokensTest, RefusesOtherFiles) {
  std::string tokens;
  for (int i = 0; i < 20; ++i) tokens += LittleEndian(static_cast<uint64_t>(1000 + i), 2);
  const std::string npy = NpyFileBytes("{'descr': '<u2', 'fortran_order': False, 'shape': (20,), }\n", tokens);
  Write("file", npy);
  EXPECT_THAT(
      std::string(Open(spec_).status().message()),
      AllOf(HasSubstr("file: is a NumPy file; expected nothing but"), HasSubstr(".astype('<u2').tofile(path)")));
  EXPECT_EQ(Describe(spec_).status(), Open(spec_).status());
  Write("file", std::string("PK\3\4", 4) + tokens);
  EXPECT_THAT(std::string(Open(spec_).status().message()), HasSubstr("is a zip archive, as an .npz is"));
  Write("file", Deflated(tokens, 31));
  EXPECT_THAT(std::string(Open(spec_).status().message()), HasSubstr("is compressed by gzip"));
  // 0x8b1f is one of GPT-2's tokens.
  WriteTokens({0x8b1f, 1000, 1001, 1002});
  EXPECT_TRUE(Open(spec_).ok()) << Open(spec_).status();
}

TEST_F(TokensTest, RefusesWiderNumbers) {
  for (const int bytes : {4, 8}) {
    std::string wide;
    for (uint64_t i = 0; i < 100; ++i) wide += LittleEndian(i * 7919 % 50257, bytes);
    Write("file", wide);
    EXPECT_THAT(std::string(Open(spec_).status().message()),
                AllOf(HasSubstr(bytes == 4 ? "of its first 200 numbers" : "of its first 400 numbers"),
                      HasSubstr("have 4 or 8 bytes"), HasSubstr(".astype('<u2')")));
    EXPECT_EQ(Describe(spec_).status(), Open(spec_).status());
  }
  // What may be tokens: one that is not 0 among them, zeros alone, and too few to tell.
  std::vector<int> tokens(64, 0);
  for (size_t i = 0; i < tokens.size(); i += 2) tokens[i] = 5;
  WriteTokens(tokens);
  EXPECT_FALSE(Open(spec_).ok());
  tokens[63] = 1;
  WriteTokens(tokens);
  EXPECT_TRUE(Open(spec_).ok()) << Open(spec_).status();
  WriteTokens(std::vector<int>(64, 0));
  EXPECT_TRUE(Open(spec_).ok()) << Open(spec_).status();
  WriteTokens({5, 0, 6, 0, 7, 0, 8, 0});
  EXPECT_TRUE(Open(spec_).ok()) << Open(spec_).status();
}

TEST_F(TokensTest, RefusesOddBytesAndVocabularies) {
  Write("file", "abcdefg");
  EXPECT_EQ(Open(spec_).status().message(), "file: 7 bytes are no whole number of tokens, which have 2 bytes each");
  WriteTokens({1, 2, 3});
  for (int64_t vocabulary : {int64_t{0}, int64_t{-5}, int64_t{65537}, std::numeric_limits<int64_t>::max()}) {
    spec_.mutable_tokens()->set_vocabulary(vocabulary);
    EXPECT_THAT(std::string(Open(spec_).status().message()), HasSubstr("it is 1 to 65536"));
  }
}

}  // namespace
}  // namespace ampd::data
