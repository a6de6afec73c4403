// YAML text as a tree that knows its lines. Internal to proto/spec.
#ifndef AMPD_PROTO_SPEC_YAML_TREE_H_
#define AMPD_PROTO_SPEC_YAML_TREE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/spec/yaml.h"

namespace ampd {

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };

  Kind kind = Kind::kNull;
  int line = 0;                  // From 1.
  bool plain = false;            // A scalar without quotes.
  std::string scalar;            // Of a scalar.
  std::vector<YamlNode> keys;    // Of a map: scalars, one for each of `values`.
  std::vector<YamlNode> values;  // Of a map or sequence.
};

// "the number 5", "a list", "null", ...: what a node is, for a message.
std::string Describe(const YamlNode& node);

// Whether a plain scalar reads as an integer or a real number.
bool LooksLikeNumber(absl::string_view text);

// "FILE:LINE: PATH: what is wrong", of these what there is.
std::string ErrorText(absl::string_view filename, const YamlError& error);

// Gives the tree of the only document of `text`; kNull when there is none. Keys are scalars; they may repeat.
// What is wrong with the text, if anything; `tree` is then as it was.
std::optional<YamlError> ParseYamlTree(absl::string_view text, YamlNode* tree);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_YAML_TREE_H_
