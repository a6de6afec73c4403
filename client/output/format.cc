#include "client/output/format.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "proto/spec/text.h"

namespace ampd::client {

void PrintMessage(const google::protobuf::Message& message, Format format, std::ostream& out) {
  switch (format) {
    case Format::kTable:
      break;
    case Format::kJson:
      out << ToJson(message, JsonStyle::kPretty);
      break;
    case Format::kJsonl:
      out << ToJson(message, JsonStyle::kCompact) << "\n";
      break;
    case Format::kYaml:
      out << "---\n" << ToYaml(message);
      break;
  }
  out.flush();
}

void PrintJsonList(const std::string& name, const std::vector<const google::protobuf::Message*>& messages,
                   std::ostream& out) {
  std::vector<std::string> items;
  for (const google::protobuf::Message* message : messages) {
    const std::string item = ToJson(*message, JsonStyle::kPretty);
    items.push_back(absl::StrReplaceAll(absl::StripSuffix(item, "\n"), {{"\n", "\n  "}}));
  }
  const std::string all = absl::StrJoin(items, ",\n  ");
  out << "{" << QuoteJson(name) << ": [" << (all.empty() ? "" : absl::StrCat("\n  ", all, "\n")) << "]}" << std::endl;
}

}  // namespace ampd::client
