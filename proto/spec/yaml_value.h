// YAML trees and google.protobuf.Value, which holds any of them. Internal to proto/spec.
#ifndef AMPD_PROTO_SPEC_YAML_VALUE_H_
#define AMPD_PROTO_SPEC_YAML_VALUE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/struct.pb.h"
#include "proto/spec/yaml_tree.h"

namespace ampd {

// A plain scalar that reads as a number or a bool is one, any other scalar a string. INVALID_ARGUMENT for a number that
// a double does not hold exactly, such as 9007199254740993: in quotes it is a string, which a field takes as well.
absl::StatusOr<google::protobuf::Value> ScalarToValue(const YamlNode& node);

// The tree that reads as `value`; strings are in quotes, so that none is taken for a number. INVALID_ARGUMENT for a
// value without a kind and a number that is not finite, wherever they stand.
absl::StatusOr<YamlNode> ValueToNode(const google::protobuf::Value& value);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_YAML_VALUE_H_
