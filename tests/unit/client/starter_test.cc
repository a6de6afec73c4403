// Every starter is a valid job file, and stays one with all that it proposes.
#include "client/starter.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/job_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/spec/resolve.h"

namespace ampd::client {
namespace {

using testing::HasSubstr;
using testing::Not;

bool IsSetting(absl::string_view line) {
  line = absl::StripLeadingAsciiWhitespace(line);
  return line.size() > 1 && line[0] == '#' && absl::ascii_islower(line[1]);
}

// Without the "#" of the line `index` of its settings; -1: of all. Empty when there is no such line.
std::string Uncommented(const std::string& text, int index) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  int count = 0;
  bool found = false;
  for (std::string& line : lines) {
    if (!IsSetting(line) || (index != count++ && index != -1)) continue;
    line.erase(line.find('#'), 1);
    found = true;
  }
  std::string joined;
  for (const std::string& line : lines) absl::StrAppend(&joined, line, "\n");
  return found ? joined : "";
}

void ExpectValid(const std::string& text, const std::string& name) {
  const absl::StatusOr<JobFile> file = JobFile::Parse(text, "job.yaml", {});
  ASSERT_TRUE(file.ok()) << name << ": " << file.status().message() << "\n" << text;
  const absl::StatusOr<ResolvedJobSpec> resolved = ResolveJobSpec(file->spec());
  EXPECT_TRUE(resolved.ok()) << name << ": " << resolved.status().message();
}

TEST(StarterTest, EachIsValidWithEachSettingAndWithAll) {
  for (const Starter& starter : Starters()) {
    const absl::StatusOr<std::string> text = StarterText(starter.name, "");
    ASSERT_TRUE(text.ok());
    ExpectValid(*text, starter.name);
    ExpectValid(Uncommented(*text, -1), starter.name);
    int settings = 0;
    for (std::string changed = Uncommented(*text, 0); !changed.empty(); changed = Uncommented(*text, ++settings)) {
      ExpectValid(changed, absl::StrCat(starter.name, ", setting ", settings));
    }
    EXPECT_GE(settings, 8) << starter.name;
  }
}

TEST(StarterTest, ThereIsOneForEveryPreset) {
  std::set<std::string> names;
  for (const Starter& starter : Starters()) names.insert(starter.name);
  const auto* family = v1::PresetModel::descriptor()->oneof_decl(0);
  for (int i = 0; i < family->field_count(); ++i) {
    EXPECT_EQ(names.count(family->field(i)->name()), 1) << family->field(i)->name();
    const absl::StatusOr<JobFile> file =
        JobFile::Parse(StarterText(family->field(i)->name(), "").value(), "job.yaml", {});
    ASSERT_TRUE(file.ok());
    EXPECT_EQ(file->spec().model().preset().family_case(), family->field(i)->number());
  }
  EXPECT_EQ(static_cast<int>(names.size()), family->field_count() + 1);
}

TEST(StarterTest, IsNamedAfterItsFile) {
  EXPECT_THAT(StarterText("resnet", "work/photos.yaml").value(), HasSubstr("\nname: \"photos\"\n"));
  EXPECT_THAT(StarterText("resnet", "work/photos.yaml").value(), HasSubstr("ampctl submit work/photos.yaml --watch"));
  EXPECT_THAT(StarterText("resnet", "").value(), HasSubstr("\nname: \"resnet\"\n"));
  // Names that a job cannot have, or that would read as something else.
  EXPECT_THAT(StarterText("resnet", "ph\"otos.yaml").value(), HasSubstr("\nname: \"resnet\"\n"));
  for (const char* odd : {"1e5.yaml", "true.yaml", "null", "-", ".yaml", "- a.yaml"}) {
    ExpectValid(StarterText("layers", odd).value(), odd);
  }
  const absl::Status unknown = StarterText("resnt", "").status();
  EXPECT_THAT(std::string(unknown.message()),
              HasSubstr("no starter 'resnt'; did you mean resnet? (one of layers, mlp,"));
}

}  // namespace
}  // namespace ampd::client
