#include "client/schema/descriptors.h"

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.pb.h"

namespace ampd::embedded {
extern const absl::string_view kJobDescriptors;
}

namespace ampd::client {
namespace {

using google::protobuf::Descriptor;

const Descriptor* Load() {
  google::protobuf::FileDescriptorSet files;
  // The bytes are this build's own.
  if (!files.ParseFromArray(embedded::kJobDescriptors.data(), static_cast<int>(embedded::kJobDescriptors.size()))) {
    abort();
  }
  auto* const pool = new google::protobuf::DescriptorPool;
  for (const auto& file : files.file()) {
    if (pool->BuildFile(file) == nullptr) abort();
  }
  return pool->FindMessageTypeByName("ampd.v1.JobSpec");
}

std::string Paragraphs(absl::string_view comment) {
  std::string text;
  bool apart = false;
  for (absl::string_view line : absl::StrSplit(comment, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty()) {
      apart = !text.empty();
    } else {
      absl::StrAppend(&text, apart ? "\n\n" : text.empty() ? "" : " ", line);
      apart = false;
    }
  }
  return text;
}

}  // namespace

const Descriptor& JobSpecWithComments() {
  static const Descriptor* const descriptor = Load();
  return *descriptor;
}

template <typename AnyDescriptor>
std::string CommentOf(const AnyDescriptor& descriptor) {
  google::protobuf::SourceLocation location;
  if (!descriptor.GetSourceLocation(&location)) return "";
  return Paragraphs(location.leading_comments.empty() ? location.trailing_comments : location.leading_comments);
}

std::string CommentAbove(const google::protobuf::FieldDescriptor& field) {
  google::protobuf::SourceLocation location;
  if (!field.GetSourceLocation(&location)) return "";
  return Paragraphs(absl::StrJoin(location.leading_detached_comments, "\n\n"));
}

template std::string CommentOf(const google::protobuf::Descriptor&);
template std::string CommentOf(const google::protobuf::EnumDescriptor&);
template std::string CommentOf(const google::protobuf::EnumValueDescriptor&);
template std::string CommentOf(const google::protobuf::FieldDescriptor&);
template std::string CommentOf(const google::protobuf::OneofDescriptor&);

}  // namespace ampd::client
