#include "client/output/format.h"

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

}  // namespace ampd::client
