#include "server/service/grpc_status.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "google/rpc/status.pb.h"
#include "proto/spec/names.h"

namespace ampd {
namespace {

// gRPC's default bound on all metadata of a response is 8 KiB, and error_details() repeats the message.
constexpr size_t kMaxMessageBytes = 2000;
constexpr size_t kMaxDetailsBytes = 5000;

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
  // Too many violations for the headers: the message still names the first ones.
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
