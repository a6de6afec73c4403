#include "proto/spec/data_parts.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "proto/spec/resolve.h"

namespace ampd {
namespace {

// The violation, or nothing.
std::string Violation(const std::string& train, const std::string& eval, const std::vector<std::string>& roots = {}) {
  v1::DataSpec data;
  EXPECT_TRUE(
      google::protobuf::TextFormat::ParseFromString(absl::StrCat("train { ", train, " } eval { ", eval, " }"), &data));
  const auto violations = FieldViolationsOf(CheckDataParts(data, roots));
  return violations.empty() ? "" : absl::StrCat(violations[0].field, ": ", violations[0].description);
}

std::string Text(const std::string& part) { return absl::StrCat("text { path: 'a' ", part, " }"); }
std::string Drawings(const std::string& part) { return absl::StrCat("quickdraw { path: 'a' ", part, " }"); }

constexpr char kWhy[] = " of the same data: what both have would be evaluated after it was trained on";

TEST(DataPartsTest, OverlapIsRefused) {
  // Somebody forgot where the part to train on ends.
  EXPECT_EQ(Violation(Text("end: 1"), Text("begin: 0.5 end: 1")),
            absl::StrCat("data.train.text.end: data.train is from 0 to 1 and data.eval from 0.5 to 1", kWhy));
  EXPECT_EQ(
      Violation(Drawings(""), Drawings("skip_per_class: 100")),
      absl::StrCat("data.train.quickdraw.samples_per_class: data.train is from 0 on and data.eval from 100 on", kWhy));
  EXPECT_NE(Violation("tokens { path: 'a' end: 0.6 }", "tokens { path: 'a' begin: 0.5 end: 1 }"), "");
  EXPECT_NE(Violation(Text("end: 1"), "limit: 100 " + Text("begin: 0.5 end: 1")), "") << "its first ones are shared";
  EXPECT_NE(Violation("limit: 10 " + Text("end: 1"), "limit: 10 " + Text("end: 0.5")), "");
}

TEST(DataPartsTest, PartsThatShareNothingPass) {
  EXPECT_EQ(Violation(Text("end: 0.9"), Text("begin: 0.9 end: 1")), "");
  EXPECT_EQ(Violation(Text("end: 1"), Text("end: 1")), "") << "the very same part is meant";
  EXPECT_EQ(Violation(Text("end: 1"), "text { path: 'b' begin: 0.5 end: 1 }"), "");
  EXPECT_EQ(Violation(Drawings("samples_per_class: 100"), Drawings("skip_per_class: 100")), "");
  EXPECT_EQ(Violation(Drawings("classes: 'cat'"), Drawings("classes: 'dog' skip_per_class: 100")), "");
  // Where the first ends the data tell.
  EXPECT_EQ(Violation("limit: 34500 " + Drawings(""), Drawings("skip_per_class: 60000")), "");
  EXPECT_EQ(Violation("glyphs {}", "glyphs {}"), "") << "their seeds are 1 and 2";
}

TEST(DataPartsTest, APathMayBeSpelledInSeveralWays) {
  const auto overlaps = [](const std::string& train, const std::string& eval, const std::vector<std::string>& roots) {
    const auto text = [](const std::string& path, const char* part) {
      return absl::StrCat("text { path: '", path, "' ", part, " }");
    };
    return !Violation(text(train, "end: 1"), text(eval, "begin: 0.5 end: 1"), roots).empty();
  };
  EXPECT_TRUE(overlaps("t.txt", "./t.txt", {}));
  EXPECT_TRUE(overlaps("a//b/t.txt", "a/./b/t.txt", {}));
  EXPECT_TRUE(overlaps("/data/t.txt", "/data//t.txt", {}));
  EXPECT_TRUE(overlaps("dataset:x/t.txt", "dataset:x/t.txt", {}));
  EXPECT_TRUE(overlaps("/data/a/t.txt", "a/t.txt", {"/other", "/data"}));
  EXPECT_TRUE(overlaps("a/t.txt", "/data/a/t.txt", {"/data/"}));
  // Other files.
  EXPECT_FALSE(overlaps("/data/a/t.txt", "t.txt", {"/data"}));
  EXPECT_FALSE(overlaps("/data/t.txt", "t.txt", {}));
  EXPECT_FALSE(overlaps("/one/t.txt", "/two/t.txt", {"/one", "/two"}));
  EXPECT_FALSE(overlaps("dataset:x/t.txt", "dataset:y/t.txt", {"/data"}));
}

TEST(DataPartsTest, GlyphsOfOneSeedAreTheSame) {
  EXPECT_EQ(Violation("glyphs {}", "glyphs { seed: 1 }"),
            "data.eval.glyphs.seed: is 1, as that of data.train: samples of one seed are the same, and would be "
            "evaluated after they were trained on");
  EXPECT_NE(Violation("glyphs { seed: 2 }", "glyphs {}"), "");
  EXPECT_EQ(Violation("glyphs { seed: 7 samples: 100 }", "glyphs { seed: 7 samples: 50 }"), "") << "both are written";
  EXPECT_EQ(Violation("glyphs { seed: 7 }", "glyphs { seed: 8 }"), "");
  EXPECT_EQ(Violation("glyphs { seed: 2 }", Text("")), "");
}

}  // namespace
}  // namespace ampd
