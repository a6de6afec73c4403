#include "proto/spec/event_kinds.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/names.h"
#include "proto/spec/resolve.h"

namespace ampd {
namespace {

// Of a name in a message.
constexpr size_t kShown = 100;

}  // namespace

absl::StatusOr<std::vector<v1::JobEvent::PayloadCase>> PayloadsOf(const std::vector<std::string>& names) {
  const google::protobuf::OneofDescriptor* payload = v1::JobEvent::descriptor()->FindOneofByName("payload");
  std::vector<v1::JobEvent::PayloadCase> payloads;
  for (const std::string& name : names) {
    const google::protobuf::FieldDescriptor* field = v1::JobEvent::descriptor()->FindFieldByName(name);
    if (field == nullptr || field->containing_oneof() != payload) {
      return InvalidFields({{"kinds", absl::StrCat("\"", Cut(name, kShown), "\" is no kind of event")}});
    }
    const auto kind = static_cast<v1::JobEvent::PayloadCase>(field->number());
    if (!absl::c_linear_search(payloads, kind)) payloads.push_back(kind);
  }
  return payloads;
}

std::string NameOfKind(v1::JobEvent::PayloadCase payload) {
  return std::string(v1::JobEvent::descriptor()->FindFieldByNumber(payload)->name());
}

}  // namespace ampd
