// One YAML scalar to one protobuf value. Internal to proto/spec.
#ifndef AMPD_PROTO_SPEC_YAML_SCALAR_H_
#define AMPD_PROTO_SPEC_YAML_SCALAR_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "google/protobuf/descriptor.h"
#include "proto/spec/yaml_tree.h"

namespace ampd {

// Each fails with INVALID_ARGUMENT that says what was expected and what was found, without the path.
absl::StatusOr<int64_t> ScalarToInt64(const YamlNode& node);
absl::StatusOr<uint64_t> ScalarToUint64(const YamlNode& node);
absl::StatusOr<int32_t> ScalarToInt32(const YamlNode& node);
absl::StatusOr<uint32_t> ScalarToUint32(const YamlNode& node);
absl::StatusOr<double> ScalarToDouble(const YamlNode& node);
absl::StatusOr<float> ScalarToFloat(const YamlNode& node);
absl::StatusOr<bool> ScalarToBool(const YamlNode& node);
absl::StatusOr<std::string> ScalarToString(const YamlNode& node);
absl::StatusOr<std::string> ScalarToBytes(const YamlNode& node);
absl::StatusOr<int> ScalarToEnum(const YamlNode& node, const google::protobuf::EnumDescriptor& type);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_YAML_SCALAR_H_
