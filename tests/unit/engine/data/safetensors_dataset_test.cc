#include "engine/data/safetensors_dataset.h"

#include "gmock/gmock.h"
#include "tests/unit/engine/data/data_folder.h"

namespace ampd::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string FileBytes(const std::string& header, const std::string& data) {
  return LittleEndian(header.size(), 8) + header + data;
}

std::string Tensor(const std::string& name, const std::string& dtype, const std::string& shape, size_t begin,
                   size_t end) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":[" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}

class SafetensorsDatasetTest : public DataFolder {
 protected:
  SafetensorsDatasetTest() { spec_.mutable_safetensors()->set_path("a.safetensors"); }

  void WritePair(const std::string& x, const std::string& x_data, const std::string& y,
                 const std::string& y_data) const {
    Write("a.safetensors", FileBytes("{" + x + "," + y + ",\"__metadata__\":{\"a\":\"b\"}}", x_data + y_data));
  }

  v1::DatasetSpec spec_;
};

TEST_F(SafetensorsDatasetTest, ReadsEveryDType) {
  const std::string labels("\3\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0", 16);
  struct Case {
    const char* dtype;
    std::string bytes;
    std::vector<float> values;
  };
  // -2 and 1.5, or -2 and 5, or 254 and 5.
  for (const Case& c :
       std::vector<Case>{{"BF16", std::string("\x00\xc0\xc0\x3f", 4), {-2, 1.5}},
                         {"F16", std::string("\x00\xc0\x00\x3e", 4), {-2, 1.5}},
                         {"F32", std::string("\0\0\x00\xc0\0\0\xc0\x3f", 8), {-2, 1.5}},
                         {"F64", std::string("\0\0\0\0\0\0\x00\xc0\0\0\0\0\0\0\xf8\x3f", 16), {-2, 1.5}},
                         {"I8", std::string("\xfe\x05", 2), {-2, 5}},
                         {"I16", std::string("\xfe\xff\x05\x00", 4), {-2, 5}},
                         {"U8", std::string("\xfe\x05", 2), {254, 5}}}) {
    const size_t n = c.bytes.size();
    WritePair(Tensor("x", c.dtype, "[2,1]", 0, n), c.bytes, Tensor("y", "I64", "[2]", n, n + 16), labels);
    const auto dataset = Open(spec_);
    ASSERT_TRUE(dataset.ok()) << c.dtype << dataset.status();
    EXPECT_EQ((*dataset)->info().classes, 4);
    EXPECT_EQ((*dataset)->ReadLabel(1), 1);
    EXPECT_THAT(Input(**dataset, 0), ElementsAre(c.values[0])) << c.dtype;
    EXPECT_THAT(Input(**dataset, 1), ElementsAre(c.values[1])) << c.dtype;
    EXPECT_EQ(Describe(spec_)->input_shape, (Shape{1}));
  }
}

TEST_F(SafetensorsDatasetTest, TakesOtherNamesAndFiles) {
  Write("a.safetensors", FileBytes("{" + Tensor("images", "U8", "[1,2,2]", 0, 4) + "}", "abcd"));
  Write("b.safetensors", FileBytes("{" + Tensor("boxes", "F32", "[1,1,5]", 0, 20) + "}", std::string(20, '\0')));
  spec_.mutable_safetensors()->set_inputs_key("images");
  spec_.mutable_safetensors()->set_targets_path("b.safetensors");
  spec_.mutable_safetensors()->set_targets_key("boxes");
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->info().input_shape, (Shape{2, 2, 1}));
  EXPECT_EQ((*dataset)->info().target_features, 5);
  EXPECT_TRUE((*dataset)->info().targets_in_space);
}

TEST_F(SafetensorsDatasetTest, NotesValuesThatAreNotFinite) {
  WritePair(Tensor("x", "BF16", "[2,1]", 0, 4), std::string("\x80\x7f\xc0\x3f", 4), Tensor("y", "U8", "[2]", 4, 6),
            "\1\2");
  const auto dataset = Open(spec_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_THAT(std::string((*dataset)->CheckFinite(0).message()), HasSubstr("sample 0 holds an infinity"));
  EXPECT_TRUE((*dataset)->CheckFinite(1).ok());
}

TEST_F(SafetensorsDatasetTest, SaysWhatIsWrong) {
  const auto error = [&] { return std::string(Open(spec_).status().message()); };
  const std::string y = Tensor("y", "U8", "[2]", 2, 4);
  WritePair(Tensor("z", "U8", "[2,1]", 0, 2), "ab", y, "\1\2");
  EXPECT_THAT(error(), AllOf(HasSubstr("no tensor named x"), HasSubstr("y, z")));
  WritePair(Tensor("x", "BOOL", "[2,1]", 0, 2), "ab", y, "\1\2");
  EXPECT_THAT(error(), HasSubstr("BOOL"));
  WritePair(Tensor("x", "U8", "[]", 0, 1) + "," + Tensor("w", "U8", "[1]", 1, 2), "ab", y, "\1\2");
  EXPECT_THAT(error(), HasSubstr("no samples"));
  WritePair(Tensor("x", "U8", "[1,2]", 0, 2), "ab", y, "\1\2");
  EXPECT_THAT(error(), AllOf(HasSubstr("1 inputs"), HasSubstr("2 targets")));
  WritePair(Tensor("x", "U8", "[4611686018427387904,8]", 0, 2), "ab", y, "\1\2");
  EXPECT_EQ(Open(spec_).status().code(), absl::StatusCode::kDataLoss);
  Write("a.safetensors", LittleEndian(uint64_t{1} << 60, 8));
  EXPECT_EQ(Open(spec_).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(SafetensorsDatasetTest, SurvivesDamage) {
  const std::string header = "{" + Tensor("x", "F32", "[2,1]", 0, 8) + "," + Tensor("y", "U8", "[2]", 8, 10) + "}";
  Torment("a.safetensors", FileBytes(header, std::string("\0\0\x80\x3f\0\0\0\x40\0\1", 10)), spec_);
}

}  // namespace
}  // namespace ampd::data
