#include "proto/spec/alternatives.h"

#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace ampd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

struct Alternatives {
  const char* message;
  const char* one;
  const char* other;
};

constexpr Alternatives kAlternatives[] = {
    {"ampd.v1.TrainSpec", "epochs", "steps"},
    {"ampd.v1.TrainSpec", "eval_every_epochs", "eval_every_steps"},
    {"ampd.v1.OptimizerSpec", "clip_global_norm", "clip_value"},
    {"ampd.v1.CsvDataset", "label", "targets"},
    {"ampd.v1.WavFolderDataset", "transcripts", "transcript_by_prefix"},
};

// The one that it excludes; null: none.
const FieldDescriptor* OtherOf(const FieldDescriptor& field) {
  const auto* message = field.containing_type();
  for (const Alternatives& pair : kAlternatives) {
    if (message->full_name() != pair.message) continue;
    if (field.name() == pair.one) return message->FindFieldByName(pair.other);
    if (field.name() == pair.other) return message->FindFieldByName(pair.one);
  }
  return nullptr;
}

bool IsSet(const Message& message, const FieldDescriptor* field) {
  const auto* reflection = message.GetReflection();
  return field->is_repeated() ? reflection->FieldSize(message, field) > 0 : reflection->HasField(message, field);
}

// Whether the field at `path` is the one at `outer`, or lies within it.
bool IsWithin(absl::string_view path, absl::string_view outer) {
  return absl::StartsWith(path, outer) &&
         (path.size() == outer.size() || path[outer.size()] == '.' || path[outer.size()] == '[');
}

// The message that `step`, such as "layers[2]", leads to; null where there is none.
const Message* Below(absl::string_view step, const FieldDescriptor* field, const Message& message) {
  if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_map() || !IsSet(message, field)) {
    return nullptr;
  }
  const auto* reflection = message.GetReflection();
  if (!field->is_repeated()) return &reflection->GetMessage(message, field);
  const size_t open = step.find('[');
  int index = -1;
  if (open == absl::string_view::npos || step.back() != ']') return nullptr;
  if (!absl::SimpleAtoi(step.substr(open + 1, step.size() - open - 2), &index)) return nullptr;
  if (index < 0 || index >= reflection->FieldSize(message, field)) return nullptr;
  return &reflection->GetRepeatedMessage(message, field, index);
}

// A field that one excludes which is set.
struct Excluded {
  std::string path;
  const FieldDescriptor* field = nullptr;
  // What has both.
  const Message* holder = nullptr;
};

std::optional<Excluded> FindExcluded(const std::string& path, const Message& message) {
  const Message* at = &message;
  size_t begin = 0;
  while (at != nullptr) {
    const size_t dot = path.find('.', begin);
    const absl::string_view step = absl::string_view(path).substr(begin, dot - begin);
    const auto* field = at->GetDescriptor()->FindFieldByName(std::string(step.substr(0, step.find('['))));
    if (field == nullptr) break;
    if (const auto* other = OtherOf(*field)) {
      if (!IsSet(*at, field)) break;
      return Excluded{absl::StrCat(path.substr(0, begin), other->name()), other, at};
    }
    if (dot == std::string::npos) break;
    at = Below(step, field, *at);
    begin = dot + 1;
  }
  return std::nullopt;
}

}  // namespace

std::string ExcludedBy(const std::string& path, const Message& message) {
  const std::optional<Excluded> excluded = FindExcluded(path, message);
  return excluded ? excluded->path : "";
}

void ClearReplaced(const std::vector<std::string>& paths, Message* message) {
  for (const std::string& path : paths) {
    const std::optional<Excluded> excluded = FindExcluded(path, *message);
    if (!excluded) continue;
    const bool is_named = absl::c_any_of(
        paths, [&](const std::string& one) { return IsWithin(one, excluded->path) || IsWithin(excluded->path, one); });
    // A part of `message`, which is the caller's to change.
    auto* const holder = const_cast<Message*>(excluded->holder);
    if (!is_named) holder->GetReflection()->ClearField(holder, excluded->field);
  }
}

}  // namespace ampd
