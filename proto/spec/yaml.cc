#include "proto/spec/yaml.h"

#include <utility>
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

namespace {

std::vector<YamlError> ReadYaml(absl::string_view text, google::protobuf::Message* message, FieldLines* lines) {
  YamlNode tree;
  if (auto error = ParseYamlTree(text, &tree)) return {*std::move(error)};
  if (tree.kind == YamlNode::Kind::kNull) return {};
  YamlReader reader(lines);
  reader.ReadMessage(tree, "", message);
  std::vector<YamlError> errors = reader.errors();
  if (reader.errors_left_out() > 0) errors.push_back({0, "", absl::StrCat(reader.errors_left_out(), " more errors")});
  return errors;
}

}  // namespace

absl::Status ParseYaml(absl::string_view text, absl::string_view filename, google::protobuf::Message* message,
                       FieldLines* lines, std::vector<YamlError>* errors) {
  message->Clear();
  std::vector<YamlError> found = ReadYaml(text, message, lines);
  absl::Status status;
  if (!found.empty()) {
    status = absl::InvalidArgumentError(absl::StrJoin(
        found, "\n", [&](std::string* out, const YamlError& error) { *out += ErrorText(filename, error); }));
  }
  if (errors != nullptr) *errors = std::move(found);
  return status;
}

}  // namespace ampd
