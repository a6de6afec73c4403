// The -o option.
#ifndef AMPD_CLIENT_OUTPUT_FORMAT_H_
#define AMPD_CLIENT_OUTPUT_FORMAT_H_

#include <ostream>
#include <string>
#include <vector>

#include "google/protobuf/message.h"

namespace ampd::client {

enum class Format {
  kTable,  // For people.
  kJson,   // One indented JSON value a message.
  kJsonl,  // One line of JSON a message.
  kYaml,   // One YAML document a message.
};

// Writes `message` in any format but kTable, and flushes.
void PrintMessage(const google::protobuf::Message& message, Format format, std::ostream& out);

// Messages for whose list there is no message as one JSON document, {"name": [...]}; flushes.
void PrintJsonList(const std::string& name, const std::vector<const google::protobuf::Message*>& messages,
                   std::ostream& out);

template <typename Messages>
void PrintJsonList(const std::string& name, const Messages& messages, std::ostream& out) {
  std::vector<const google::protobuf::Message*> all;
  for (const auto& message : messages) all.push_back(&message);
  PrintJsonList(name, all, out);
}

}  // namespace ampd::client

#endif  // AMPD_CLIENT_OUTPUT_FORMAT_H_
