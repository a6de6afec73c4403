// The reference of job files against the descriptors of the generated messages, which are not those that it is made
// from.
#include "client/schema/markdown.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "ampd/v1/job.pb.h"
#include "client/program.h"
#include "client/schema/comment.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.pb.h"
#include "gtest/gtest.h"

namespace ampd::client {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using testing::HasSubstr;

class MarkdownTest : public testing::Test {
 protected:
  void SetUp() override {
    std::ostringstream out, err;
    const char* const arguments[] = {"ampctl", "schema", "--markdown"};
    ASSERT_EQ(RunProgram(3, arguments, &out, &err, false), 0) << err.str();
    page_ = out.str();
  }

  // What stands behind a heading, up to the next one.
  std::string Section(const std::string& heading) const {
    const std::string text = absl::StrCat("\n", page_);
    // Where two are alike the second says where it is.
    const size_t at =
        std::min(text.find(absl::StrCat("\n", heading, "\n")), text.find(absl::StrCat("\n", heading, " in ")));
    if (at == std::string::npos) return "";
    const size_t end = page_.find("\n#", at + heading.size());
    return page_.substr(at, end - at);
  }

  std::string page_;
};

struct Reached {
  std::set<const Descriptor*> messages;
  std::set<const EnumDescriptor*> enums;
};

void Reach(const Descriptor* message, Reached* reached) {
  if (message->file()->package() != "ampd.v1" || !reached->messages.insert(message).second) return;
  for (int i = 0; i < message->field_count(); ++i) {
    if (message->field(i)->message_type() != nullptr) Reach(message->field(i)->message_type(), reached);
    if (message->field(i)->enum_type() != nullptr) reached->enums.insert(message->field(i)->enum_type());
  }
}

TEST_F(MarkdownTest, IsWhatTheDocumentsHave) {
  std::ifstream file("docs/job_file.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), page_) << "docs/job_file.md is old: ninja -C build/dev ampd_references";
}

TEST_F(MarkdownTest, HasEveryFieldAndEveryValueInItsSection) {
  Reached reached;
  Reach(v1::JobSpec::descriptor(), &reached);
  const auto name = [](const std::string& full_name) { return full_name.substr(sizeof("ampd.v1")); };
  std::map<std::string, std::string> top;
  for (int i = 0; i < v1::JobSpec::descriptor()->field_count(); ++i) {
    const auto* field = v1::JobSpec::descriptor()->field(i);
    if (field->message_type() != nullptr) top.emplace(name(field->message_type()->full_name()), field->name());
  }
  int fields = 0;
  for (const Descriptor* message : reached.messages) {
    if (message->options().map_entry()) continue;
    std::string heading = "### " + name(message->full_name());
    if (top.count(name(message->full_name())) > 0) heading = "## " + top[name(message->full_name())];
    if (message == v1::JobSpec::descriptor()) heading = "## The job";
    const std::string section = Section(heading);
    ASSERT_FALSE(section.empty()) << heading;
    for (int i = 0; i < message->field_count(); ++i, ++fields) {
      EXPECT_THAT(section, HasSubstr(absl::StrCat("\n| `", message->field(i)->name(), "` | "))) << heading;
    }
  }
  EXPECT_GT(fields, 200);
  for (const EnumDescriptor* type : reached.enums) {
    const std::string section = Section("### " + name(type->full_name()));
    for (int i = 0; i < type->value_count(); ++i) {
      const std::string row = absl::StrCat("\n| `", type->value(i)->name(), "` | ");
      EXPECT_EQ(section.find(row) != std::string::npos, type->value(i)->number() != 0) << type->full_name() << row;
    }
  }
}

TEST_F(MarkdownTest, LinksLeadToHeadings) {
  std::set<std::string> anchors;
  for (absl::string_view line : absl::StrSplit(page_, '\n')) {
    if (!absl::ConsumePrefix(&line, "#")) continue;
    std::string anchor;
    for (const char c : absl::StripAsciiWhitespace(absl::string_view(line.substr(line.find(' '))))) {
      if (c == ' ') anchor += '-';
      if (absl::ascii_isalnum(c) || c == '_') anchor += absl::ascii_tolower(c);
    }
    EXPECT_TRUE(anchors.insert(anchor).second) << anchor << " is there twice";
  }
  int links = 0;
  for (size_t at = page_.find("](#"); at != std::string::npos; at = page_.find("](#", at + 1), ++links) {
    const std::string anchor = page_.substr(at + 3, page_.find(')', at) - at - 3);
    EXPECT_TRUE(anchors.count(anchor) > 0) << anchor;
  }
  EXPECT_GT(links, 80);
}

TEST_F(MarkdownTest, TellsTypesDefaultsAndMeanings) {
  const std::string train = Section("## train");
  EXPECT_THAT(
      train,
      HasSubstr("\n| `batch_size` | integer | 32 | Samples per update, >= 1; at most those of the training set. |\n"));
  const std::string retry = Section("## retry");
  // Of a comment that two fields share each has its own default.
  EXPECT_THAT(retry, HasSubstr("\n| `backoff_seconds` | number | 1 | "));
  EXPECT_THAT(retry, HasSubstr("\n| `max_backoff_seconds` | number | 60 | "));
  const std::string convolution = Section("### Conv2dLayer");
  EXPECT_THAT(convolution, HasSubstr("\nIn `model.layers[].conv2d`"));
  EXPECT_THAT(convolution, HasSubstr("\n| `filters` | integer | required | Output channels, >= 1. |\n"));
  EXPECT_THAT(convolution, HasSubstr("\n| `activation` | [Activation.Kind](#activationkind) | NONE |  |\n"));
  // The zero value's comment is the default.
  EXPECT_THAT(Section("### CacheSpec"), HasSubstr("\n| `kind` | [CacheSpec.Kind](#cachespeckind) | MEMORY |  |\n"));
  EXPECT_THAT(Section("### PrecisionRule"),
              HasSubstr("\n| `dtype` | [PrecisionSpec.Mode](#precisionspecmode) | FP32 | "));
  const std::string optimizer = Section("## optimizer");
  EXPECT_THAT(optimizer, HasSubstr("\nAt most one of: (default: adamw with its defaults)\n\n| field "));
  EXPECT_THAT(optimizer, HasSubstr("Also in `phases[].optimizer`."));
  EXPECT_THAT(Section("## start_from"), HasSubstr("\nExactly one of:\n"));
  EXPECT_THAT(Section("## The job"), HasSubstr("| `labels` | map from text to text | "));
  EXPECT_THAT(Section("## phases"), HasSubstr("\nThe fields below go with `model.networks`.\n"));
  // What Markdown would take for marks.
  EXPECT_THAT(Section("## phases"), HasSubstr("generator.conv\\*.weight"));
}

TEST(ReadCommentTest, TakesDefaultsApart) {
  const auto read = [](const char* text, int index = 0, int fields = 1) {
    const FieldComment comment = ReadComment(text, index, fields);
    return absl::StrCat(comment.meaning, "|", comment.default_value, comment.required ? "|required" : "");
  };
  EXPECT_EQ(read("Samples, >= 1. Default 32."), "Samples, >= 1.|32");
  EXPECT_EQ(read("Default: none."), "|none");
  EXPECT_EQ(read("Added, > 0. Default 1e-5. In fp32."), "Added, > 0. In fp32.|1e-5");
  EXPECT_EQ(read("Output channels. Required."), "Output channels.||required");
  EXPECT_EQ(read("Required with `networks`."), "Required with `networks`.|");
  EXPECT_EQ(read("[height, width]; default [1, 1]."), "[height, width]; default [1, 1].|[1, 1]");
  EXPECT_EQ(read("Rows. Default 50257; 256 for bytes."), "Rows. Default 50257; 256 for bytes.|50257");
  EXPECT_EQ(read("Steps. Defaults 30 and 5.", 1, 2), "Steps.|5");
  EXPECT_EQ(read("Defaults 0, and all.", 1, 2), "|all");
  EXPECT_EQ(read("Defaults as for `lengths`."), "|as for `lengths`");
  EXPECT_EQ(read("Of a GPU, e.g. 9.0."), "Of a GPU, e.g. 9.0.|");
  EXPECT_EQ(read(""), "|");
}

}  // namespace
}  // namespace ampd::client
