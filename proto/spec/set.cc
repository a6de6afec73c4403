#include <memory>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/names.h"
#include "proto/spec/resolve.h"
#include "proto/spec/violations.h"
#include "proto/spec/yaml.h"
#include "proto/spec/yaml_reader.h"
#include "proto/spec/yaml_tree.h"
#include "proto/spec/yaml_value.h"

namespace ampd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

absl::Status Fail(absl::string_view path, absl::string_view what) {
  return InvalidFields({{std::string(path), std::string(what)}});
}

// One name of a path, with its list index when it has one: "layers[2]".
struct Step {
  std::string name;
  int index = -1;
};

absl::StatusOr<Step> ParseStep(absl::string_view path, absl::string_view text) {
  Step step;
  const size_t open = text.find('[');
  step.name = std::string(text.substr(0, open));
  if (open == absl::string_view::npos) return step;
  absl::string_view index = text.substr(open + 1);
  if (index.empty() || index.back() != ']') return Fail(path, "a list index is written like layers[2]");
  index.remove_suffix(1);
  const bool is_number = !index.empty() && index.find_first_not_of("0123456789") == absl::string_view::npos;
  if (!is_number || !absl::SimpleAtoi(index, &step.index)) {
    return Fail(path, absl::StrCat("no list index: ", Quoted(index)));
  }
  return step;
}

// Walks to the field a path names, making the messages on the way, and puts a value there.
class Setter {
 public:
  Setter(absl::string_view path, const YamlNode& value) : path_(path), value_(value) {}

  absl::Status Apply(Message* message, absl::string_view rest) {
    if (root_ == nullptr) root_ = message->GetDescriptor();
    const size_t dot = rest.find('.');
    absl::StatusOr<Step> step = ParseStep(path_, rest.substr(0, dot));
    if (!step.ok()) return step.status();
    const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(step->name);
    if (field == nullptr) return Fail(path_, NoSuchField(step->name, *message->GetDescriptor(), root_));
    if (step->index >= 0 && (!field->is_repeated() || field->is_map())) {
      return Fail(path_, absl::StrCat(step->name, " is not a list"));
    }
    if (dot == absl::string_view::npos) return SetField(message, field, step->index);
    const absl::string_view below = rest.substr(dot + 1);
    if (field->is_map()) return SetEntry(message, field, std::string(below));
    return Descend(message, field, step->index, below);
  }

 private:
  absl::Status Descend(Message* message, const FieldDescriptor* field, int index, absl::string_view below) {
    const auto* reflection = message->GetReflection();
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      return Fail(path_, absl::StrCat(field->name(), " has no fields"));
    }
    if (!field->is_repeated()) {
      if (absl::Status status = CheckOneof(*message, field); !status.ok()) return status;
      return Apply(reflection->MutableMessage(message, field), below);
    }
    if (index < 0) return Fail(path_, absl::StrCat(field->name(), " is a list; name an element, such as [0]"));
    const int size = reflection->FieldSize(*message, field);
    if (index > size) return Fail(path_, absl::StrCat("the list ", field->name(), " has ", size, " elements"));
    if (index == size) return Apply(reflection->AddMessage(message, field), below);
    return Apply(reflection->MutableRepeatedMessage(message, field, index), below);
  }

  // Going through another member of a oneof would silently drop the one that is set.
  absl::Status CheckOneof(const Message& message, const FieldDescriptor* field) {
    const auto* oneof = field->real_containing_oneof();
    const auto* set = oneof == nullptr ? nullptr : message.GetReflection()->GetOneofFieldDescriptor(message, oneof);
    if (set == nullptr || set == field) return absl::OkStatus();
    return Fail(path_, absl::StrCat(set->name(), " is set, and only one of its kind may be; set ", field->name(),
                                    " as a whole to replace it"));
  }

  absl::Status SetField(Message* message, const FieldDescriptor* field, int index) {
    YamlReader reader(nullptr);
    if (index >= 0) return SetElement(message, field, index);
    message->GetReflection()->ClearField(message, field);
    if (value_.kind == YamlNode::Kind::kNull) return absl::OkStatus();
    reader.ReadField(value_, 0, path_, field, message);
    return ErrorsOf(reader);
  }

  absl::Status SetElement(Message* message, const FieldDescriptor* field, int index) {
    const auto* reflection = message->GetReflection();
    const int size = reflection->FieldSize(*message, field);
    if (index > size) return Fail(path_, absl::StrCat("the list ", field->name(), " has ", size, " elements"));
    YamlReader reader(nullptr);
    reader.AddElement(value_, path_, field, message);
    if (!reader.errors().empty()) return ErrorsOf(reader);
    if (index < size) {
      reflection->SwapElements(message, field, index, size);
      reflection->RemoveLast(message, field);
    }
    return absl::OkStatus();
  }

  absl::Status SetEntry(Message* message, const FieldDescriptor* field, std::string key) {
    YamlNode name;
    name.kind = YamlNode::Kind::kScalar;
    name.plain = true;
    name.scalar = std::move(key);
    YamlReader reader(nullptr);
    // The newest of equal keys holds.
    reader.AddEntry(name, value_, path_.substr(0, path_.size() - name.scalar.size() - 1), field, message);
    return ErrorsOf(reader);
  }

  absl::Status ErrorsOf(const YamlReader& reader) {
    if (reader.errors().empty()) return absl::OkStatus();
    return Fail(reader.errors()[0].path, reader.errors()[0].what);
  }

  std::string path_;
  const YamlNode& value_;
  // Of the message that the path starts in.
  const google::protobuf::Descriptor* root_ = nullptr;
};

}  // namespace

absl::Status ApplySet(Message* message, absl::string_view assignment) {
  const size_t equals = assignment.find('=');
  if (equals == absl::string_view::npos || equals == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--set ", Cut(assignment, kMostFieldBytes), ": expected PATH=VALUE"));
  }
  const absl::string_view path = assignment.substr(0, equals);
  YamlNode value;
  if (const auto error = ParseYamlTree(assignment.substr(equals + 1), &value)) {
    return absl::InvalidArgumentError(ErrorText(absl::StrCat("--set ", Cut(path, kMostFieldBytes)), *error));
  }
  // On a copy, so that an error halfway leaves no trace.
  std::unique_ptr<Message> changed(message->New());
  changed->CopyFrom(*message);
  if (absl::Status status = Setter(path, value).Apply(changed.get(), path); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--set ", status.message()));
  }
  message->GetReflection()->Swap(message, changed.get());
  return absl::OkStatus();
}

absl::Status SetField(Message* message, absl::string_view path, const google::protobuf::Value& value) {
  const absl::StatusOr<YamlNode> node = ValueToNode(value);
  if (!node.ok()) return Fail(path, node.status().message());
  return Setter(path, *node).Apply(message, path);
}

}  // namespace ampd
