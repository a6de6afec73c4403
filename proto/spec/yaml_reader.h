// A YAML tree to a protobuf message, by reflection. Internal to proto/spec.
#ifndef AMPD_PROTO_SPEC_YAML_READER_H_
#define AMPD_PROTO_SPEC_YAML_READER_H_

#include <string>
#include <vector>

#include "google/protobuf/message.h"
#include "google/protobuf/struct.pb.h"
#include "proto/spec/yaml.h"
#include "proto/spec/yaml_tree.h"

namespace ampd {

// Reads trees into messages and keeps the errors. A field in error is left out.
class YamlReader {
 public:
  // `lines` may be null.
  explicit YamlReader(FieldLines* lines) : lines_(lines) {}

  // The fields of the map `node` into `message`, whose own path is `path` ("" for the root).
  void ReadMessage(const YamlNode& node, const std::string& path, google::protobuf::Message* message);
  // All of `field` of `message`: a list or map for a repeated one. `path` is the field's. `line` is its key's.
  void ReadField(const YamlNode& node, int line, const std::string& path,
                 const google::protobuf::FieldDescriptor* field, google::protobuf::Message* message);
  // One more element of the list `field`.
  void AddElement(const YamlNode& node, const std::string& path, const google::protobuf::FieldDescriptor* field,
                  google::protobuf::Message* message);
  // One entry of the map `field`. `path` is the field's.
  void AddEntry(const YamlNode& key, const YamlNode& value, const std::string& path,
                const google::protobuf::FieldDescriptor* field, google::protobuf::Message* message);

  const std::vector<YamlError>& errors() const { return errors_; }
  // Errors beyond those kept.
  size_t errors_left_out() const { return errors_left_out_; }

 private:
  void ReadNamedField(const YamlNode& key, const YamlNode& value, const std::string& path,
                      google::protobuf::Message* message);
  void ReadScalar(const YamlNode& node, const std::string& path, const google::protobuf::FieldDescriptor* field,
                  bool add, google::protobuf::Message* message);
  // A singular message or scalar, or with `add` a new element of a repeated one.
  void ReadValue(const YamlNode& node, const std::string& path, const google::protobuf::FieldDescriptor* field,
                 bool add, google::protobuf::Message* message);
  bool RefusedAsNull(const YamlNode& node, int line, const std::string& path,
                     const google::protobuf::FieldDescriptor* field);
  // What has no schema; in yaml_value.cc.
  void ReadFreeValue(const YamlNode& node, const std::string& path, google::protobuf::Value* value);
  void ReadFreeValueAt(const YamlNode& node, const std::string& path, google::protobuf::Value* value);
  void ReadFreeList(const YamlNode& node, const std::string& path, google::protobuf::ListValue* list);
  void ReadFreeMap(const YamlNode& node, const std::string& path, google::protobuf::Struct* fields);
  void Fail(int line, const std::string& path, std::string what);
  // Where the field at `path` stands, for FieldLines, while there is room: paths of nested free values are long, and
  // each field keeps its own.
  void NoteLine(const std::string& path, int line);

  FieldLines* lines_;
  // What a tree is read into whose path is "".
  const google::protobuf::Descriptor* root_ = nullptr;
  // What lines_ holds.
  size_t line_bytes_ = 0;
  // Free values around the one that is read.
  int free_depth_ = 0;
  std::vector<YamlError> errors_;
  size_t errors_left_out_ = 0;
};

// "no such field; did you mean batch_size?": names near `name` in `type`, else a field of that name in the messages
// below it, else in those below `root`, which the whole is of; null: not known.
std::string NoSuchField(const std::string& name, const google::protobuf::Descriptor& type,
                        const google::protobuf::Descriptor* root);

// `path` and the name of a field or map key in it, escaped for a message.
std::string JoinPath(const std::string& path, absl::string_view name);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_YAML_READER_H_
