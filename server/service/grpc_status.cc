#include "server/service/grpc_status.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "proto/spec/names.h"

namespace ampd {
namespace {

// gRPC's default bound on all metadata of a response is 8 KiB, which some count as sent: error_details() in base64, by
// a third larger. It repeats the message.
constexpr size_t kMaxMessageBytes = 2000;
constexpr size_t kMaxDetailsBytes = 4200;

// Leaves the first violations of a BadRequest among `details`, as many as fit, and says behind them how many there
// were.
void Fit(google::rpc::Status* details) {
  // A violation is shorter than 16 KiB: its tag and a length of two bytes.
  constexpr size_t kNoteBytes = 40, kHeaderBytes = 3;
  for (google::protobuf::Any& any : *details->mutable_details()) {
    const size_t all = details->ByteSizeLong(), others = all - any.value().size() + kNoteBytes;
    google::rpc::BadRequest bad;
    if (all <= kMaxDetailsBytes || others > kMaxDetailsBytes || !any.UnpackTo(&bad)) continue;
    auto* violations = bad.mutable_field_violations();
    size_t room = kMaxDetailsBytes - others;
    int kept = 0;
    for (const google::rpc::BadRequest::FieldViolation& violation : *violations) {
      const size_t bytes = violation.ByteSizeLong() + kHeaderBytes;
      if (bytes > room) break;
      room -= bytes;
      ++kept;
    }
    const int more = violations->size() - kept;
    violations->DeleteSubrange(kept, more);
    violations->Add()->set_description(absl::StrCat("and ", more, " more"));
    any.set_value(bad.SerializeAsString());
  }
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(Cut(status.message(), kMaxMessageBytes));
  status.ForEachPayload([&details](absl::string_view url, const absl::Cord& payload) {
    google::protobuf::Any& any = *details.add_details();
    any.set_type_url(std::string(url));
    any.set_value(std::string(payload));
  });
  Fit(&details);
  // The message still says it.
  if (details.ByteSizeLong() > kMaxDetailsBytes) details.clear_details();
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), details.message(), details.SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return result;
  for (const auto& detail : details.details()) result.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  return result;
}

}  // namespace ampd
