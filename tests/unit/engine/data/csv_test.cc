#include "engine/data/csv.h"

#include <random>

#include "gmock/gmock.h"
#include "tests/unit/engine/data/data_folder.h"

namespace ampd::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CsvTest : public DataFolder {
 protected:
  CsvTest() {
    spec_.mutable_csv()->set_path("a.csv");
    spec_.mutable_csv()->set_label("y");
  }

  absl::StatusOr<std::unique_ptr<Dataset>> OpenText(const std::string& text) const {
    Write("a.csv", text);
    return Open(spec_);
  }
  std::string ErrorOf(const std::string& text) const { return std::string(OpenText(text).status().message()); }

  v1::DatasetSpec spec_;
};

TEST_F(CsvTest, ReadsNamedColumns) {
  const auto dataset = OpenText("a,y,b\n1,2,-0.5\r\n3e2,0,\"4\"\n");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 2);
  EXPECT_EQ((*dataset)->info().input_shape, (Shape{2}));
  EXPECT_EQ((*dataset)->info().classes, 3);
  EXPECT_THAT(Input(**dataset, 0), ElementsAre(1, -0.5));
  EXPECT_THAT(Input(**dataset, 1), ElementsAre(300, 4));
  EXPECT_EQ((*dataset)->ReadLabel(0), 2);
  const auto described = Describe(spec_);
  ASSERT_TRUE(described.ok());
  EXPECT_EQ(described->size, 2);
  EXPECT_EQ(described->classes, 3);
}

TEST_F(CsvTest, ReadsColumnsByNumber) {
  spec_.mutable_csv()->clear_label();
  for (const char* column : {"2", "0"}) spec_.mutable_csv()->add_targets(column);
  spec_.mutable_csv()->add_inputs("1");
  spec_.mutable_csv()->set_delimiter(";");
  const auto dataset = OpenText("1;2;3\n\n4;5;6");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->info().target_features, 2);
  std::vector<float> target(2);
  (*dataset)->ReadTarget(1, absl::MakeSpan(target));
  EXPECT_THAT(target, ElementsAre(6, 4));
  EXPECT_THAT(Input(**dataset, 1), ElementsAre(5));
}

TEST_F(CsvTest, TakesQuotesLineEndsMarksAndGzip) {
  const std::string text = "\xef\xbb\xbf\"a \"\"b\"\",\nc\",y\r\n\"1\",0\r\n";
  spec_.mutable_csv()->add_inputs("a \"b\",\nc");
  for (const std::string& stored : {text, Deflated(text, 31)}) {
    const auto dataset = OpenText(stored);
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    EXPECT_THAT(Input(**dataset, 0), ElementsAre(1));
  }
}

TEST_F(CsvTest, SaysWhatIsWrongAndWhere) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("empty"));
  EXPECT_THAT(ErrorOf("x,y\n"), HasSubstr("no records"));
  EXPECT_THAT(ErrorOf("x,z\n1,2\n"), AllOf(HasSubstr("no column 'y'"), HasSubstr("x, z")));
  EXPECT_THAT(ErrorOf("x,y\n1,2\n1,2,3\n"), AllOf(HasSubstr("line 3"), HasSubstr("3 fields"), HasSubstr("2")));
  EXPECT_THAT(ErrorOf("x,y\n1,2\n,2\n"), AllOf(HasSubstr("line 3"), HasSubstr("column 0"), HasSubstr("no number")));
  EXPECT_THAT(ErrorOf("x,y\n1,2\none,2\n"), AllOf(HasSubstr("line 3"), HasSubstr("'one'")));
  for (const char* label : {"-1", "0.5", "1048576", "nan", "1e300"}) {
    EXPECT_THAT(ErrorOf(std::string("x,y\n1,") + label), AllOf(HasSubstr("line 2"), HasSubstr("label")));
  }
  EXPECT_THAT(ErrorOf("x,y\n1,\"2\n3\n"), AllOf(HasSubstr("line 2"), HasSubstr("never closed")));
  EXPECT_THAT(ErrorOf("x,y\n1,2\"\n"), HasSubstr("quote amid"));
  EXPECT_THAT(ErrorOf("x,y\n1,\"2\"3\n"), HasSubstr("quote amid"));
  EXPECT_THAT(ErrorOf("x,y\n1,\"" + std::string(5000, '1') + "\"\n"), HasSubstr("4096"));
  EXPECT_THAT(ErrorOf("y\n1\n"), HasSubstr("no column is left"));
  spec_.mutable_csv()->add_inputs("y");
  EXPECT_THAT(ErrorOf("x,y\n1,2\n"), HasSubstr("'y' is a target"));
  spec_.mutable_csv()->add_targets("x");
  EXPECT_EQ(OpenText("x,y\n1,2\n").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CsvTest, NotesValuesThatAreNotFinite) {
  const auto dataset = OpenText("x,y\n1,0\nnan,0\n-inf,0\n1e39,0\n");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_TRUE((*dataset)->CheckFinite(0).ok());
  EXPECT_THAT(std::string((*dataset)->CheckFinite(1).message()), HasSubstr("sample 1 holds a NaN"));
  EXPECT_THAT(std::string((*dataset)->CheckFinite(2).message()), HasSubstr("sample 2 holds an infinity"));
  // Finite, but not in float32.
  EXPECT_TRUE((*dataset)->CheckFinite(3).ok());
}

TEST_F(CsvTest, LimitsSamples) {
  spec_.set_limit(1);
  const auto dataset = OpenText("x,y\n1,0\n2,5\n");
  EXPECT_EQ((*dataset)->size(), 1);
  EXPECT_EQ((*dataset)->info().classes, 6);
}

TEST_F(CsvTest, AnyBytesDoNoHarm) {
  std::mt19937 random(1);
  const std::string alphabet = "1,\"\n\r.-ex\xef\xbb\xbf;";
  for (int i = 0; i < 400; ++i) {
    std::string text = i % 2 == 0 ? "x,y\n" : "";
    for (int n = static_cast<int>(random() % 40); n > 0; --n) text.push_back(alphabet[random() % alphabet.size()]);
    const auto dataset = OpenText(text);
    if (dataset.ok()) ReadEverything(**dataset);
  }
}

}  // namespace
}  // namespace ampd::data
