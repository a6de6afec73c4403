#include "engine/data/npy.h"

#include <cmath>
#include <limits>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "tests/unit/engine/data/data_folder.h"
#include "tests/unit/engine/data/numpy_files.h"

namespace ampd::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string FromBase64(const char* text) {
  std::string bytes;
  EXPECT_TRUE(absl::Base64Unescape(text, &bytes));
  return bytes;
}

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class NpyTest : public DataFolder {
 protected:
  NpyTest() {
    spec_.mutable_npy()->set_inputs("x.npy");
    spec_.mutable_npy()->set_targets("y.npy");
    Write("x.npy", NpyFloats("(3, 2)", {1, 2, 3, 4, 5, 6}));
    Write("y.npy", FromBase64(kI8LabelsNpy));
  }
  absl::StatusCode Code() { return Open(spec_).status().code(); }
  std::string Message() { return std::string(Open(spec_).status().message()); }
  v1::DatasetSpec spec_;
};

TEST_F(NpyTest, ReadsNumPysArchives) {
  spec_.mutable_npy()->set_inputs("both.npz");
  spec_.mutable_npy()->clear_targets();
  for (const char* archive : {kStoredNpz, kDeflatedNpz}) {
    Write("both.npz", FromBase64(archive));
    const auto dataset = Open(spec_);
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    EXPECT_EQ((*dataset)->size(), 3);
    EXPECT_THAT((*dataset)->info().input_shape, ElementsAre(2));
    EXPECT_FALSE((*dataset)->info().byte_inputs);
    EXPECT_EQ((*dataset)->info().classes, 3);
    EXPECT_THAT(Input(**dataset, 0), ElementsAre(1.5f, -2.0f));
    EXPECT_THAT(Input(**dataset, 1), ElementsAre(3.25f, 1e6f));
    EXPECT_EQ((*dataset)->ReadLabel(0), 2);
    EXPECT_EQ((*dataset)->ReadLabel(1), 0);
    EXPECT_TRUE((*dataset)->CheckFinite(1).ok());
    EXPECT_EQ(Describe(spec_)->classes, 3);
  }
}

TEST_F(NpyTest, SaysWhichArraysAnArchiveHolds) {
  Write("x.npy", FromBase64(kStoredNpz));
  spec_.mutable_npy()->set_inputs_key("images");
  EXPECT_EQ(Code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(), AllOf(HasSubstr("images"), HasSubstr("x.npy, y.npy")));
}

TEST_F(NpyTest, ReadsEveryFloatType) {
  for (const char* file : {kFloat64Npy, kVersion2Npy, kVersion3Npy}) {
    Write("x.npy", FromBase64(file));
    const auto dataset = Open(spec_);
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    EXPECT_THAT(Input(**dataset, 0), ElementsAre(1.5f, -2.0f));
    EXPECT_THAT(Input(**dataset, 1), ElementsAre(3.25f, 1e6f));
  }
  Write("x.npy", FromBase64(kFloat16Npy));
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_THAT(Input(**dataset, 1), ElementsAre(3.25f, 65504.0f));
  EXPECT_EQ(Input(**dataset, 2)[1], 0x1p-24f);
}

TEST_F(NpyTest, ReadsImagesOfBytes) {
  Write("x.npy", FromBase64(kUint8ImagesNpy));
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_TRUE((*dataset)->info().byte_inputs);
  EXPECT_THAT((*dataset)->info().input_shape, ElementsAre(2, 2, 1));
  EXPECT_THAT(Input(**dataset, 1), ElementsAre(4, 5, 6, 7));
}

TEST_F(NpyTest, ReadsEveryIntegerTypeAsLabels) {
  for (const char* file :
       {kI1LabelsNpy, kI2LabelsNpy, kI4LabelsNpy, kI8LabelsNpy, kU1LabelsNpy, kU2LabelsNpy, kU4LabelsNpy}) {
    Write("y.npy", FromBase64(file));
    const auto dataset = Open(spec_);
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    EXPECT_EQ((*dataset)->info().classes, 3);
    EXPECT_EQ((*dataset)->ReadLabel(0), 2);
    EXPECT_EQ((*dataset)->ReadLabel(2), 1);
  }
}

TEST_F(NpyTest, ReadsFloatTargets) {
  for (const auto& [shape, features] : {std::pair("(3,)", 1), std::pair("(3, 2)", 2)}) {
    Write("y.npy", NpyFloats(shape, std::vector<float>(static_cast<size_t>(3 * features), 0.5f)));
    const auto dataset = Open(spec_);
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    EXPECT_EQ((*dataset)->info().target_kind, TargetKind::kFloat);
    EXPECT_EQ((*dataset)->info().target_features, features);
    EXPECT_EQ(Describe(spec_)->target_features, features);
    std::vector<float> target(static_cast<size_t>(features));
    (*dataset)->ReadTarget(2, absl::MakeSpan(target));
    EXPECT_EQ(target.back(), 0.5f);
  }
}

TEST_F(NpyTest, RefusesWhatItDoesNotSupport) {
  const std::pair<const char*, const char*> cases[] = {
      {kFortranNpy, "Fortran order"}, {kBigEndianNpy, "'>f4'"}, {kStructuredNpy, "structured"}};
  for (const auto& [file, why] : cases) {
    Write("x.npy", FromBase64(file));
    EXPECT_EQ(Code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(Message(), AllOf(HasSubstr("x.npy"), HasSubstr(why)));
  }
}

TEST_F(NpyTest, RefusesShapesThatDoNotFit) {
  Write("x.npy", NpyFloats("(3,)", {1, 2, 3}));
  EXPECT_THAT(Message(), AllOf(HasSubstr("x.npy"), HasSubstr("[3]"), HasSubstr("[n, features]")));
  Write("x.npy", NpyFloats("(2, 2)", {1, 2, 3, 4}));
  EXPECT_EQ(Code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Message(), AllOf(HasSubstr("2 inputs"), HasSubstr("3 targets")));
  Write("x.npy", FromBase64(kI4LabelsNpy));
  EXPECT_THAT(Message(), HasSubstr("inputs of shape [3]"));
}

std::string NpyIntegers(const std::string& shape, const std::vector<int32_t>& values) {
  return NpyFileBytes("{'descr': '<i4', 'fortran_order': False, 'shape': " + shape + ", }\n",
                      std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int32_t)));
}

TEST_F(NpyTest, ReadsSequencesWithLengthsAndALabelAtEachStep) {
  spec_.mutable_npy()->set_lengths("n.npy");
  Write("x.npy", NpyIntegers("(3, 2)", {7, 1 << 24, -3, 4, 5, 6}));
  Write("n.npy", NpyIntegers("(3,)", {2, 1, 2}));
  Write("y.npy", NpyIntegers("(3, 2)", {4, -100, 2, 9, 0, 3}));
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const DatasetInfo& info = (*dataset)->info();
  EXPECT_THAT(info.input_shape, ElementsAre(2));
  EXPECT_THAT(info.lengths, ElementsAre(2, 1, 2));
  EXPECT_EQ(info.label_count, 2);
  // Nine stands past the end of its sample.
  EXPECT_EQ(info.classes, 5);
  EXPECT_THAT(Input(**dataset, 0), ElementsAre(7, 16777216));
  std::vector<int32_t> labels(2);
  (*dataset)->ReadLabels(0, absl::MakeSpan(labels));
  EXPECT_THAT(labels, ElementsAre(4, -1));
  (*dataset)->ReadLabels(1, absl::MakeSpan(labels));
  EXPECT_THAT(labels, ElementsAre(2, -1));
  EXPECT_THAT(Describe(spec_)->lengths, ElementsAre(2, 1, 2));
  spec_.set_limit(2);
  EXPECT_THAT(Describe(spec_)->lengths, ElementsAre(2, 1));
  EXPECT_THAT((*Open(spec_))->info().lengths, ElementsAre(2, 1));
}

TEST_F(NpyTest, ReadsSequencesOfFeaturesWithLabelsToFind) {
  spec_.mutable_npy()->set_lengths("n.npy");
  spec_.mutable_npy()->set_target_lengths("m.npy");
  Write("x.npy", NpyFloats("(3, 2, 1)", {1, 2, 3, 4, 5, 6}));
  Write("n.npy", NpyIntegers("(3,)", {2, 1, 2}));
  Write("m.npy", NpyIntegers("(3,)", {2, 0, 1}));
  Write("y.npy", NpyIntegers("(3, 2)", {1, 2, 50, 50, 3, 50}));
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_THAT((*dataset)->info().input_shape, ElementsAre(2, 1));
  EXPECT_THAT((*dataset)->info().label_lengths, ElementsAre(2, 0, 1));
  EXPECT_EQ((*dataset)->info().classes, 4);
}

TEST_F(NpyTest, RefusesLengthsThatDoNotFit) {
  spec_.mutable_npy()->set_lengths("n.npy");
  Write("n.npy", NpyIntegers("(3,)", {2, 0, 2}));
  EXPECT_THAT(Message(), HasSubstr("n.npy: the length of sample 1 is 0; lengths are 1 to 2"));
  Write("n.npy", NpyIntegers("(3,)", {2, 1, 3}));
  EXPECT_THAT(Message(), HasSubstr("the length of sample 2 is 3"));
  Write("n.npy", NpyIntegers("(2,)", {2, 1}));
  EXPECT_THAT(Message(), HasSubstr("n.npy holds 2 lengths of 3 samples"));
  Write("n.npy", NpyFloats("(3,)", {1, 1, 1}));
  EXPECT_EQ(Code(), absl::StatusCode::kInvalidArgument);
  Write("n.npy", NpyIntegers("(3,)", {2, 1, 2}));
  spec_.mutable_npy()->set_target_lengths("n.npy");
  EXPECT_THAT(Message(), HasSubstr("npy.target_lengths are of label sequences"));
  spec_.mutable_npy()->clear_target_lengths();
  Write("x.npy", NpyFloats("(3, 1, 1, 2)", {1, 2, 3, 4, 5, 6}));
  EXPECT_THAT(Message(), HasSubstr("cannot have lengths"));
  Write("x.npy", NpyIntegers("(3, 2)", {7, (1 << 24) + 1, -3, 4, 5, 6}));
  EXPECT_THAT(Message(), HasSubstr("element 1 is 16777217"));
}

TEST_F(NpyTest, RefusesLabelsThatAreNone) {
  const std::string header = "{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }\n";
  const std::string zeros = LittleEndian(0, 8) + LittleEndian(0, 8);
  Write("y.npy", NpyFileBytes(header, zeros + LittleEndian(~uint64_t{0}, 8)));
  EXPECT_EQ(Code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Message(), AllOf(HasSubstr("y.npy"), HasSubstr("sample 2"), HasSubstr("-1")));
  Write("y.npy", NpyFileBytes(header, zeros + LittleEndian(uint64_t{1} << 40, 8)));
  EXPECT_EQ(Code(), absl::StatusCode::kDataLoss);
  Write("y.npy", NpyFileBytes(header, zeros + LittleEndian(uint64_t{1} << 30, 8)));
  EXPECT_EQ(Code(), absl::StatusCode::kDataLoss);
}

TEST_F(NpyTest, FindsValuesThatAreNotFinite) {
  Write("x.npy", NpyFloats("(3, 2)", {1, 1e6f, 3, kNan, kInf, kInf}));
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_TRUE((*dataset)->CheckFinite(0).ok());
  EXPECT_EQ((*dataset)->CheckFinite(1).code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string((*dataset)->CheckFinite(1).message()),
              AllOf(HasSubstr("x.npy"), HasSubstr("sample 1"), HasSubstr("NaN")));
  EXPECT_THAT(std::string((*dataset)->CheckFinite(2).message()), AllOf(HasSubstr("sample 2"), HasSubstr("infinity")));
}

TEST_F(NpyTest, FindsTargetsThatAreNotFinite) {
  Write("y.npy", NpyFloats("(3,)", {1, kNan, 3}));
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_TRUE((*dataset)->CheckFinite(0).ok());
  EXPECT_THAT(std::string((*dataset)->CheckFinite(1).message()), AllOf(HasSubstr("y.npy"), HasSubstr("sample 1")));
}

TEST_F(NpyTest, ADoubleBeyondFloatIsNoNumber) {
  // The largest float32 is (2 - 2^-23) 2^127; from half a step above it on doubles round to infinity.
  const double values[] = {std::ldexp(2 - std::ldexp(1, -23), 127), 1e300, std::ldexp(2 - std::ldexp(1, -24), 127)};
  Write("x.npy", NpyFileBytes("{'descr': '<f8', 'fortran_order': False, 'shape': (3, 1), }",
                              std::string(reinterpret_cast<const char*>(values), sizeof(values))));
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_TRUE((*dataset)->CheckFinite(0).ok());
  EXPECT_EQ(Input(**dataset, 0)[0], std::numeric_limits<float>::max());
  EXPECT_EQ((*dataset)->CheckFinite(1).message(), "x.npy: sample 1 holds 1e+300, beyond float32's range");
  EXPECT_EQ((*dataset)->CheckFinite(2).code(), absl::StatusCode::kDataLoss);
}

TEST_F(NpyTest, TargetsDefaultToTheArchiveOnly) {
  spec_.mutable_npy()->clear_targets();
  EXPECT_EQ(Code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(), HasSubstr("npy.targets"));
}

TEST_F(NpyTest, RefusesTrailingBytesAndOtherFiles) {
  Write("x.npy", NpyFloats("(3, 2)", {1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(Code(), absl::StatusCode::kDataLoss);
  Write("x.npy", "this is a text, not an array");
  EXPECT_THAT(Message(), HasSubstr("not a NumPy file"));
  Write("x.npy", NpyFloats("(9223372036854775807, 9223372036854775807)", {1}));
  EXPECT_EQ(Code(), absl::StatusCode::kDataLoss);
  Write("x.npy", NpyFloats("(1000000000, 1000000)", {1}));
  EXPECT_EQ(Code(), absl::StatusCode::kDataLoss);
}

TEST_F(NpyTest, EndsWellOnDamagedArrays) {
  Torment("x.npy", FromBase64(kFloat64Npy), spec_);
  Torment("y.npy", FromBase64(kI8LabelsNpy), spec_);
}

TEST_F(NpyTest, EndsWellOnDamagedArchives) {
  spec_.mutable_npy()->set_inputs("both.npz");
  spec_.mutable_npy()->clear_targets();
  Torment("both.npz", FromBase64(kStoredNpz), spec_);
  Torment("both.npz", FromBase64(kDeflatedNpz), spec_);
}

// Every byte of the values of a member is covered by its checksum.
TEST_F(NpyTest, SeesDamageInArchives) {
  Write("x.npy", FromBase64(kStoredNpz));
  ASSERT_TRUE(Open(spec_).ok());
  std::string damaged = FromBase64(kStoredNpz);
  const size_t at = damaged.find(LittleEndian(0x40500000, 4));  // 3.25f
  ASSERT_NE(at, std::string::npos);
  damaged[at] ^= 1;
  Write("x.npy", damaged);
  EXPECT_EQ(Code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Message(), AllOf(HasSubstr("x.npy[x.npy]"), HasSubstr("checksum")));
}

TEST_F(NpyTest, RefusesZip64AndEncryption) {
  const std::string archive = FromBase64(kStoredNpz);
  const size_t entry = archive.find(std::string("PK\x01\x02", 4));
  std::string zip64 = archive;
  zip64.replace(entry + 24, 4, std::string(4, '\xff'));
  Write("x.npy", zip64);
  EXPECT_EQ(Code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Message(), HasSubstr("zip64"));
  std::string encrypted = archive;
  encrypted[entry + 8] |= 1;
  Write("x.npy", encrypted);
  EXPECT_THAT(Message(), HasSubstr("encrypted"));
  std::string bzip2 = archive;
  bzip2[entry + 10] = 12;
  Write("x.npy", bzip2);
  EXPECT_THAT(Message(), HasSubstr("method 12"));
}

TEST(NpyHeaderTest, ReadsTheDictInAnySpelling) {
  const auto header = ParseNpyHeader("{\"shape\":( 4 ,5,),'fortran_order':False , \"descr\": '<f2'}  \n", "f");
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_THAT(header->shape, ElementsAre(4, 5));
  EXPECT_EQ(header->dtype(), "f2");
  EXPECT_TRUE(ParseNpyHeader("{'descr': '|u1', 'fortran_order': True, 'shape': (7,)}", "f").ok());
  EXPECT_TRUE(ParseNpyHeader("{'descr': '|u1', 'fortran_order': False, 'shape': ()}", "f")->shape.empty());
}

TEST(NpyHeaderTest, RefusesEverythingElse) {
  for (const char* text : {
           "",
           "{",
           "{}",
           "[]",
           "{'descr': '<f4'}",
           "{'descr': '<f4', 'fortran_order': False}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (3)",
           "{'descr': '<f4', 'fortran_order': 0, 'shape': (3,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
           "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (3,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'more': 1}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)} x",
           "{'descr': '<f4', 'fortran_order': False, 'shape': 3}",
           "{'descr': '<f3', 'fortran_order': False, 'shape': (3,)}",
           "{'descr': 'f4', 'fortran_order': False, 'shape': (3,)}",
           "{'descr': '|O', 'fortran_order': False, 'shape': (3,)}",
           "{'descr': '<U4', 'fortran_order': False, 'shape': (3,)}",
       }) {
    EXPECT_FALSE(ParseNpyHeader(text, "f").ok()) << text;
  }
}

}  // namespace
}  // namespace ampd::data
