#include "proto/spec/differences.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "google/protobuf/text_format.h"

namespace ampd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// A message on one line; a value as it is.
std::string ValueText(const Message& message, const FieldDescriptor* field, int index) {
  std::string text;
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  printer.PrintFieldValueToString(message, field, index, &text);
  if (text.empty() && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) return "{}";
  return std::string(absl::StripSuffix(text, " "));
}

// Walks two messages of one type side by side.
class Comparer {
 public:
  void Compare(const Message& a, const Message& b, const std::string& path) {
    const auto* descriptor = a.GetDescriptor();
    for (int i = 0; i < descriptor->field_count(); ++i) {
      const FieldDescriptor* field = descriptor->field(i);
      CompareField(a, b, field, path.empty() ? field->name() : absl::StrCat(path, ".", field->name()));
    }
  }

  std::vector<FieldDifference> Take(size_t most) {
    if (differences_.size() > most) {
      const size_t more = differences_.size() - most;
      differences_.resize(most);
      differences_.push_back({kMoreFields, absl::StrCat(more, " more"), ""});
    }
    return std::move(differences_);
  }

 private:
  void CompareField(const Message& a, const Message& b, const FieldDescriptor* field, const std::string& path) {
    if (field->is_repeated()) return CompareList(a, b, field, path);
    const auto* of = a.GetReflection();
    const bool in_a = Has(a, field), in_b = Has(b, field);
    if (!in_a && !in_b) return;
    if (in_a && in_b && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      return Compare(of->GetMessage(a, field), of->GetMessage(b, field), path);
    }
    Note(path, in_a ? ValueText(a, field, -1) : "-", in_b ? ValueText(b, field, -1) : "-");
  }

  static bool Has(const Message& message, const FieldDescriptor* field) {
    return !field->has_presence() || message.GetReflection()->HasField(message, field);
  }

  void CompareList(const Message& a, const Message& b, const FieldDescriptor* field, const std::string& path) {
    const auto* of = a.GetReflection();
    const int in_a = of->FieldSize(a, field), in_b = of->FieldSize(b, field);
    for (int i = 0; i < std::max(in_a, in_b); ++i) {
      const std::string at = absl::StrCat(path, "[", i, "]");
      if (i < in_a && i < in_b && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_map()) {
        Compare(of->GetRepeatedMessage(a, field, i), of->GetRepeatedMessage(b, field, i), at);
      } else {
        Note(at, i < in_a ? ValueText(a, field, i) : "-", i < in_b ? ValueText(b, field, i) : "-");
      }
    }
  }

  void Note(const std::string& path, const std::string& a, const std::string& b) {
    if (a != b) differences_.push_back({path, a, b});
  }

  std::vector<FieldDifference> differences_;
};

}  // namespace

std::vector<FieldDifference> Differences(const Message& a, const Message& b, size_t most) {
  Comparer comparer;
  comparer.Compare(a, b, "");
  return comparer.Take(most);
}

}  // namespace ampd
