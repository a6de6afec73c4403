#include "proto/spec/yaml.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/spec/yaml_reader.h"
#include "proto/spec/yaml_tree.h"

namespace ampd {

int FieldLines::LineOf(absl::string_view path) const {
  while (!path.empty()) {
    const auto found = lines_.find(std::string(path));
    if (found != lines_.end()) return found->second;
    const size_t end = path.find_last_of(".[");
    path = end == absl::string_view::npos ? "" : path.substr(0, end);
  }
  return 0;
}

absl::Status ParseYaml(absl::string_view text, absl::string_view filename, google::protobuf::Message* message,
                       FieldLines* lines) {
  message->Clear();
  absl::StatusOr<YamlNode> tree = ParseYamlTree(text, filename);
  if (!tree.ok()) return tree.status();
  if (tree->kind == YamlNode::Kind::kNull) return absl::OkStatus();
  YamlReader reader(lines);
  reader.ReadMessage(*tree, "", message);
  if (reader.errors().empty()) return absl::OkStatus();
  std::string text_of_errors = absl::StrJoin(reader.errors(), "\n", [&](std::string* out, const ReadError& error) {
    absl::StrAppend(out, filename, ":", error.line, ": ", error.path, error.path.empty() ? "" : ": ", error.what);
  });
  if (reader.errors_left_out() > 0) {
    absl::StrAppend(&text_of_errors, "\n", filename, ": ", reader.errors_left_out(), " more errors");
  }
  return absl::InvalidArgumentError(text_of_errors);
}

}  // namespace ampd
