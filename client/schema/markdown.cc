#include "client/schema/markdown.h"

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/schema/comment.h"
#include "client/schema/descriptors.h"
#include "proto/spec/window_fields.h"

namespace ampd::client {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::OneofDescriptor;

// Protobuf's own messages.
const std::map<std::string, const char*>& KnownTypes() {
  static const auto& known = *new std::map<std::string, const char*>{
      {"google.protobuf.Timestamp", "time (RFC 3339)"},
      {"google.protobuf.Value", "any value"},
      {"google.protobuf.ListValue", "list of values"},
      {"google.protobuf.Struct", "map from text to values"},
  };
  return known;
}

bool IsKnown(const Descriptor& type) { return KnownTypes().count(type.full_name()) > 0; }

const char* ScalarName(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_INT64:
      return "integer";
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64:
      return "integer >= 0";
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return "number";
    default:
      return field.type() == FieldDescriptor::TYPE_BYTES ? "bytes (base64)" : "text";
  }
}

// Within its package: "Sweep.Kind".
template <typename Named>
std::string Name(const Named& type) {
  return type.full_name().substr(type.file()->package().size() + 1);
}

// As GitHub makes them of headings.
std::string Anchor(const std::string& heading) {
  std::string anchor;
  for (const char c : heading) {
    if (absl::ascii_isalnum(c) || c == '_' || c == '-') anchor.push_back(absl::ascii_tolower(c));
    if (c == ' ') anchor.push_back('-');
  }
  return anchor;
}

// Prose, in which code stands between backticks.
std::string Escaped(absl::string_view text) {
  std::string escaped;
  bool code = false;
  for (const absl::string_view part : absl::StrSplit(text, '`')) {
    if (code) {
      absl::StrAppend(&escaped, "`", part, "`");
    } else {
      absl::StrAppend(&escaped, absl::StrReplaceAll(part, {{"<", "\\<"}, {"*", "\\*"}, {"](", "]\\("}}));
    }
    code = !code;
  }
  return escaped;
}

// A cell has one line.
std::string Cell(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"|", "\\|"}, {"\n\n", "<br><br>"}, {"\n", " "}});
}

// A table, begun with its first row.
class Table {
 public:
  Table(std::vector<std::string> columns, std::string* out) : columns_(std::move(columns)), out_(out) {}

  void Row(std::vector<std::string> cells) {
    if (!open_) {
      absl::StrAppend(out_, "\n| ", absl::StrJoin(columns_, " | "), " |\n|");
      for (size_t i = 0; i < columns_.size(); ++i) *out_ += "---|";
      *out_ += "\n";
    }
    open_ = true;
    for (std::string& cell : cells) cell = Cell(cell);
    absl::StrAppend(out_, "| ", absl::StrJoin(cells, " | "), " |\n");
  }
  void End() { open_ = false; }

 private:
  const std::vector<std::string> columns_;
  std::string* const out_;
  bool open_ = false;
};

class Writer {
 public:
  explicit Writer(const Descriptor& root) : root_(root) {}

  std::string Write(const std::string& title, const std::string& introduction) {
    Find(root_, "");
    absl::StrAppend(&out_, "# ", title, "\n\n", introduction);
    absl::StrAppend(&out_, "\nSections:");
    for (const Section& section : sections_) {
      if (section.level == 2) absl::StrAppend(&out_, " [", section.heading, "](#", Anchor(section.heading), ")");
    }
    out_ += "\n";
    for (const Section& section : sections_) WriteSection(section);
    return std::move(out_);
  }

 private:
  // Of a message, or of an enum.
  struct Section {
    int level;
    std::string heading;
    const Descriptor* message = nullptr;
    const EnumDescriptor* values = nullptr;
  };

  // The messages and enums in the order of the page, and where they may stand in the file. `path` is that of `message`.
  void Find(const Descriptor& message, const std::string& path) {
    const bool root = &message == &root_;
    if (root) {
      Add({2, "The job", &message}, message.full_name());
      for (int i = 0; i < message.field_count(); ++i) anchors_.insert(Anchor(message.field(i)->name()));
    }
    for (int i = 0; i < message.field_count(); ++i) {
      const FieldDescriptor& field = *message.field(i);
      const FieldDescriptor& value = field.is_map() ? *field.message_type()->map_value() : field;
      std::string at = absl::StrCat(path, path.empty() ? "" : ".", field.name());
      if (field.is_repeated()) at += field.is_map() ? ".<name>" : "[]";
      const int level = root ? 2 : 3;
      if (value.enum_type() != nullptr) {
        places_[value.enum_type()->full_name()].push_back(at);
        Add({3, Name(*value.enum_type()), nullptr, value.enum_type()}, value.enum_type()->full_name());
      }
      if (value.message_type() == nullptr || IsKnown(*value.message_type())) continue;
      places_[value.message_type()->full_name()].push_back(at);
      const std::string heading = root ? field.name() : Name(*value.message_type());
      if (Add({level, heading, value.message_type()}, value.message_type()->full_name())) {
        Find(*value.message_type(), at);
      }
    }
  }

  bool Add(Section section, const std::string& type) {
    // Two headings may differ in case alone: of the message Sweep and of the field sweep.
    if (section.level > 2 && headings_.count(type) == 0 && !anchors_.insert(Anchor(section.heading)).second) {
      absl::StrAppend(&section.heading, " in ", places_[type].front());
    }
    if (!headings_.emplace(type, section.heading).second) return false;
    sections_.push_back(std::move(section));
    return true;
  }

  void WriteSection(const Section& section) {
    absl::StrAppend(&out_, "\n", std::string(section.level, '#'), " ", section.heading, "\n");
    const std::string type = section.message != nullptr ? section.message->full_name() : section.values->full_name();
    std::vector<std::string> places = places_[type];
    // The heading says it.
    if (section.level == 2 && !places.empty()) places.erase(places.begin());
    if (!places.empty()) {
      absl::StrAppend(&out_, section.level == 2 ? "\nAlso in `" : "\nIn `", absl::StrJoin(places, "`, `"), "`.\n");
    }
    const std::string comment = section.message != nullptr ? CommentOf(*section.message) : CommentOf(*section.values);
    if (!comment.empty()) absl::StrAppend(&out_, "\n", Escaped(comment), "\n");
    if (section.values != nullptr) return WriteValues(*section.values);
    WriteFields(*section.message);
  }

  void WriteValues(const EnumDescriptor& type) {
    Table table({"value", "meaning"}, &out_);
    for (int i = 0; i < type.value_count(); ++i) {
      // The zero value says "not given": nobody means it.
      if (type.value(i)->number() == 0) continue;
      table.Row({absl::StrCat("`", type.value(i)->name(), "`"), Escaped(CommentOf(*type.value(i)))});
    }
  }

  // A comment that several fields share, and which of them a field is.
  struct Shared {
    std::string comment;
    int index = 0;
    int fields = 1;
  };

  // Fields of a scalar without a comment share the one above them.
  static std::map<const FieldDescriptor*, Shared> Comments(const Descriptor& message) {
    std::map<const FieldDescriptor*, Shared> comments;
    std::vector<const FieldDescriptor*> sharing;
    for (int i = 0; i < message.field_count(); ++i) {
      const FieldDescriptor* field = message.field(i);
      std::string comment = CommentOf(*field);
      const bool shares =
          comment.empty() && !sharing.empty() && field->message_type() == nullptr && field->enum_type() == nullptr;
      if (!shares) sharing.clear();
      if (shares) comment = comments[sharing.front()].comment;
      sharing.push_back(field);
      comments[field] = {comment, static_cast<int>(sharing.size()) - 1, 1};
      for (const FieldDescriptor* one : sharing) comments[one].fields = static_cast<int>(sharing.size());
    }
    return comments;
  }

  void WriteFields(const Descriptor& message) {
    const auto comments = Comments(message);
    Table table({"field", "type", "default", "meaning"}, &out_);
    std::vector<const OneofDescriptor*> oneofs;
    for (int i = 0; i < message.field_count(); ++i) {
      const FieldDescriptor& field = *message.field(i);
      if (const OneofDescriptor* oneof = field.real_containing_oneof(); oneof != nullptr) {
        if (oneofs.empty() || oneofs.back() != oneof) oneofs.push_back(oneof);
        continue;
      }
      if (const std::string heading = CommentAbove(field); !heading.empty()) {
        table.End();
        absl::StrAppend(&out_, "\n", Escaped(heading), "\n");
      }
      WriteField(field, comments.at(&field), &table);
    }
    for (const OneofDescriptor* oneof : oneofs) WriteOneof(*oneof, comments);
  }

  void WriteOneof(const OneofDescriptor& oneof, const std::map<const FieldDescriptor*, Shared>& comments) {
    FieldComment comment = ReadComment(CommentOf(oneof));
    absl::StrAppend(&out_, "\n", comment.required ? "Exactly one of:" : "At most one of:");
    if (!comment.default_value.empty()) absl::StrAppend(&out_, " (default: ", Escaped(comment.default_value), ")");
    absl::StrAppend(&out_, comment.meaning.empty() ? "" : " ", Escaped(comment.meaning), "\n");
    Table table({"field", "type", "default", "meaning"}, &out_);
    for (int i = 0; i < oneof.field_count(); ++i) WriteField(*oneof.field(i), comments.at(oneof.field(i)), &table);
  }

  void WriteField(const FieldDescriptor& field, const Shared& shared, Table* table) {
    FieldComment comment = ReadComment(shared.comment, shared.index, shared.fields);
    if (shared.comment.empty() && field.message_type() != nullptr && !field.is_map()) {
      comment.meaning = FirstSentence(CommentOf(*field.message_type()));
    }
    // "FP32 (the default) or the job's own mode."
    const size_t named = comment.meaning.find(" (the default)");
    if (comment.default_value.empty() && named != std::string::npos) {
      const std::string before = comment.meaning.substr(0, named);
      comment.default_value = before.substr(before.rfind(' ') + 1);
    }
    if (comment.default_value.empty() && field.enum_type() != nullptr && !field.is_repeated()) {
      comment.default_value = ReadComment(CommentOf(*field.enum_type()->FindValueByNumber(0))).meaning;
      if (!comment.default_value.empty() && comment.default_value.back() == '.') comment.default_value.pop_back();
    }
    const std::string given = comment.required ? "required" : Escaped(comment.default_value);
    table->Row({absl::StrCat("`", field.name(), "`"), TypeOf(field), given, Escaped(comment.meaning)});
  }

  std::string TypeOf(const FieldDescriptor& field) const {
    if (field.is_map()) {
      return absl::StrCat("map from text to ", ValueType(*field.message_type()->map_value()));
    }
    const std::string value = ValueType(field);
    if (IsWindowField(field)) return absl::StrCat(value, " or list of ", value);
    return absl::StrCat(field.is_repeated() ? "list of " : "", value);
  }

  std::string ValueType(const FieldDescriptor& field) const {
    if (field.message_type() != nullptr) {
      const auto known = KnownTypes().find(field.message_type()->full_name());
      return known != KnownTypes().end() ? known->second : Link(*field.message_type());
    }
    return field.enum_type() != nullptr ? Link(*field.enum_type()) : ScalarName(field);
  }

  template <typename Named>
  std::string Link(const Named& type) const {
    return absl::StrCat("[", Name(type), "](#", Anchor(headings_.at(type.full_name())), ")");
  }

  const Descriptor& root_;
  std::vector<Section> sections_;
  // By the full names of messages and enums.
  std::map<std::string, std::string> headings_;
  std::map<std::string, std::vector<std::string>> places_;
  std::set<std::string> anchors_;
  std::string out_;
};

}  // namespace

std::string MarkdownOf(const Descriptor& message, const std::string& title, const std::string& introduction) {
  return Writer(message).Write(title, introduction);
}

}  // namespace ampd::client
