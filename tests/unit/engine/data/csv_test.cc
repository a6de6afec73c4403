#include "engine/data/csv.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
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
  EXPECT_THAT((*dataset)->info().input_names, ElementsAre("a", "b"));
  EXPECT_THAT((*dataset)->info().target_names, ElementsAre("y"));
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
  EXPECT_THAT((*dataset)->info().target_names, ElementsAre());
  const auto named = OpenText("a;b;c\n1;2;3");
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_THAT((*named)->info().target_names, ElementsAre("c", "a"));
  std::vector<float> target(2);
  (*dataset)->ReadTarget(1, absl::MakeSpan(target));
  EXPECT_THAT(target, ElementsAre(6, 4));
  EXPECT_THAT(Input(**dataset, 1), ElementsAre(5));
}

TEST_F(CsvTest, TheFirstRecordNamesColumnsUnlessThoseReadAreNumbers) {
  // A column that is not read may hold text; "3" is no value of another column.
  spec_.mutable_csv()->set_label("2");
  spec_.mutable_csv()->add_inputs("3");
  auto dataset = OpenText("id0,5,1,0.5,3\nid1,6,0,0.25,4\n");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 2);
  EXPECT_THAT(Input(**dataset, 0), ElementsAre(0.5));
  EXPECT_THAT((*dataset)->info().input_names, ElementsAre());
  // A missing value names nothing.
  EXPECT_THAT(ErrorOf("a,7,0,,1\nb,7,0,1,1\n"), HasSubstr("line 1: '' in column 3 is no number"));
  // Names may be numbers, too.
  spec_.mutable_csv()->set_header(v1::CsvDataset::PRESENT);
  dataset = OpenText("3,1,id,2\n9,8,x,1\n");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 1);
  EXPECT_THAT(Input(**dataset, 0), ElementsAre(9));
  EXPECT_EQ((*dataset)->ReadLabel(0), 1);
  EXPECT_THAT((*dataset)->info().input_names, ElementsAre("3"));
}

TEST_F(CsvTest, AsksWhereTheFirstRecordMayBeNamesOrASample) {
  // What is named, and first records: those that count, those with all that is named, beside text or an index, and
  // those whose numbers go in even steps.
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "0,1,2"},
      {"1 3", "name,0,1,2"},
      {"1 3", ",0,1,2"},
      {"1", ",0,1,2"},
      {"1", "name,1,2,3"},
      {"1", "bob,2,1,5"},
      {"1", ",2,1,5"},
      {"0", "2,0,1,img.png"},
      {"1", "bob,1,2,7"},
      {"1 3", "country,1990,1991,1992"},
      {"1 3", "nm,400.5,400.4,400.3"},
  };
  const auto open = [&](const std::string& inputs, const std::string& first) {
    spec_.mutable_csv()->clear_inputs();
    for (absl::string_view input : absl::StrSplit(inputs, ' ', absl::SkipEmpty())) {
      spec_.mutable_csv()->add_inputs(std::string(input));
    }
    const bool three = std::count(first.begin(), first.end(), ',') == 2;
    return OpenText(absl::StrCat(first, "\n", three ? "10,11,12" : "10,11,12,13", "\n"));
  };
  spec_.mutable_csv()->set_label("2");
  for (const auto& [inputs, first] : cases) {
    spec_.mutable_csv()->clear_header();
    EXPECT_THAT(std::string(open(inputs, first).status().message()),
                AllOf(HasSubstr("csv.header"), HasSubstr("'" + first + "'"), HasSubstr("PRESENT or ABSENT")))
        << inputs;
  }
  // Said, it is read so: names wherever they stand, or places.
  spec_.mutable_csv()->set_header(v1::CsvDataset::PRESENT);
  const auto by_name = open("1", "bob,2,1,5");
  ASSERT_TRUE(by_name.ok()) << by_name.status();
  EXPECT_EQ((*by_name)->size(), 1);
  EXPECT_THAT(Input(**by_name, 0), ElementsAre(12));
  EXPECT_EQ((*by_name)->ReadLabel(0), 11);
  EXPECT_THAT((*by_name)->info().input_names, ElementsAre("1"));
  spec_.mutable_csv()->set_header(v1::CsvDataset::ABSENT);
  const auto by_place = open("1", "bob,2,1,5");
  ASSERT_TRUE(by_place.ok()) << by_place.status();
  EXPECT_EQ((*by_place)->size(), 2);
  EXPECT_THAT(Input(**by_place, 0), ElementsAre(2));
  EXPECT_EQ((*by_place)->ReadLabel(0), 1);
  EXPECT_THAT((*by_place)->info().input_names, ElementsAre());
  // These are no names: one that is named is not there, one is there twice, they do not count from 0, go in uneven
  // steps or none, or are but two.
  spec_.mutable_csv()->clear_header();
  for (const auto& [inputs, first] : std::vector<std::pair<std::string, std::string>>{{"1", "bob,5,3,1"},
                                                                                      {"1", "bob,1,2,1"},
                                                                                      {"1", "1,2,3,4"},
                                                                                      {"1", "3,1,2,5"},
                                                                                      {"1", "0,1,3,4"},
                                                                                      {"1 3", "country,1990,1991,1993"},
                                                                                      {"1 3", "country,1,1,1"},
                                                                                      {"1", "country,1990,1991,7"}}) {
    const auto dataset = open(inputs, first);
    ASSERT_TRUE(dataset.ok()) << first << dataset.status();
    EXPECT_EQ((*dataset)->size(), 2) << first;
  }
}

// Nor is a sample taken for names because a value of it is missing.
TEST_F(CsvTest, AsksWhereTheFirstRecordLacksValues) {
  spec_.mutable_csv()->set_label("3");
  for (const char* mark : {"NA", "n/a", "#N/A", "<NA>", "null", "NULL", "None", "?", "-", " ", " NA "}) {
    const std::string first = absl::StrCat("5.1,3.5,", mark, ",0");
    spec_.mutable_csv()->clear_header();
    EXPECT_THAT(ErrorOf(first + "\n1,2,3,1\n"),
                AllOf(HasSubstr("csv.header"), HasSubstr("'" + first + "'"), HasSubstr("PRESENT or ABSENT")));
    spec_.mutable_csv()->set_header(v1::CsvDataset::ABSENT);
    EXPECT_THAT(ErrorOf(first + "\n1,2,3,1\n"), HasSubstr("line 1"));
    spec_.mutable_csv()->set_header(v1::CsvDataset::PRESENT);
    EXPECT_TRUE(OpenText(first + "\n1,2,3,1\n").ok());
  }
  // Words, beside numbers or not, and marks alone are names.
  spec_.mutable_csv()->clear_header();
  for (const char* first : {"5.1,3.5,NAME,0", "a,b,-,y", "-,?,NA,null"}) {
    const auto dataset = OpenText(absl::StrCat(first, "\n1,2,3,1\n"));
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    EXPECT_EQ((*dataset)->size(), 1) << first;
  }
  // What is not read may lack anything.
  for (const char* input : {"0", "1"}) spec_.mutable_csv()->add_inputs(input);
  const auto dataset = OpenText("5.1,3.5,NA,0\n1,2,3,1\n");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 2);
}

TEST_F(CsvTest, CountsClassesWithoutTheHighest) {
  EXPECT_EQ((*OpenText("x,y\n1,2\n1,255\n1,1\n1,255\n"))->info().CountedClasses(255), 3);
  EXPECT_EQ((*OpenText("x,y\n1,255\n1,2\n1,0\n"))->info().CountedClasses(255), 3);
  EXPECT_EQ((*OpenText("x,y\n1,255\n1,2\n"))->info().CountedClasses(2), 256);
  EXPECT_EQ((*OpenText("x,y\n1,255\n1,2\n"))->info().CountedClasses(absl::nullopt), 256);
  EXPECT_EQ((*OpenText("x,y\n1,255\n"))->info().CountedClasses(255), 0);
}

TEST_F(CsvTest, AnIndexOfRowsIsNoInputUnlessItIsNamed) {
  EXPECT_THAT(ErrorOf(",a,y\n0,7,1\n1,8,0\n"), AllOf(HasSubstr("csv.inputs: column 0"), HasSubstr("has no name")));
  spec_.mutable_csv()->set_header(v1::CsvDataset::PRESENT);
  EXPECT_THAT(ErrorOf(",1,y\n0,7,1\n1,8,0\n"), HasSubstr("csv.inputs: column 0"));
  spec_.mutable_csv()->add_inputs("a");
  const auto dataset = OpenText(",a,y\n0,7,1\n1,8,0\n");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_THAT(Input(**dataset, 1), ElementsAre(8));
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
  // Finite, but not in float32, whose largest number is 3.4e38.
  EXPECT_THAT(std::string((*dataset)->CheckFinite(3).message()),
              HasSubstr("sample 3 holds 1e+39, beyond float32's range"));
}

// What an error quotes is UTF-8, and so can be told: protobuf reads no other text.
bool IsUtf8(const std::string& text) {
  v1::CsvDataset message;
  message.set_path(text);
  return message.ParseFromString(message.SerializeAsString());
}

TEST_F(CsvTest, WhatErrorsQuoteIsUtf8) {
  // 39, and 19, bytes in front of a character of two.
  const std::string cut = std::string(39, 'x') + "\xc3\xa9 and more";
  std::string error = ErrorOf("x,y\n" + cut + ",2\n");
  EXPECT_THAT(error, AllOf(HasSubstr("'" + std::string(39, 'x') + "... ("), HasSubstr("is no number")));
  EXPECT_TRUE(IsUtf8(error)) << error;
  error = ErrorOf("x,y\n1," + cut + "\n");
  EXPECT_TRUE(IsUtf8(error)) << error;
  error = ErrorOf(cut + ",z\n1,2\n");
  EXPECT_THAT(error, HasSubstr("no column 'y'"));
  EXPECT_TRUE(IsUtf8(error)) << error;
  // Latin-1.
  error = ErrorOf("caf\xe9,z\n1,2\n");
  EXPECT_THAT(error, HasSubstr("caf\xef\xbf\xbd, z"));
  EXPECT_TRUE(IsUtf8(error)) << error;
  error = ErrorOf("x,y\ncaf\xe9,2\n");
  EXPECT_THAT(error, HasSubstr("'caf\xef\xbf\xbd' in column 0 is no number"));
  // A first record that may be names or a sample.
  spec_.mutable_csv()->set_label("1");
  spec_.mutable_csv()->add_inputs("2");
  spec_.mutable_csv()->add_inputs("3");
  error = ErrorOf(std::string(19, 'x') + "\xc3\xa9\xe9,1,2,3\na,1,2,3\n");
  EXPECT_THAT(error, HasSubstr("may be names or a sample"));
  EXPECT_TRUE(IsUtf8(error)) << error;
}

TEST_F(CsvTest, SaysWhatUtf16Is) {
  for (const std::string& text : {std::string("\xff\xfex\0,\0y\0\n\0", 10), std::string("\xfe\xff\0x\0,\0y\0\n", 10)}) {
    EXPECT_EQ(ErrorOf(text), "a.csv: is UTF-16 text; save it as UTF-8");
  }
  // Of Latin-1, one of them begins a name.
  EXPECT_TRUE(OpenText("\xfe,y\n1,2\n").ok());
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
