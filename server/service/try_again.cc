#include "server/service/try_again.h"

#include <cstdint>

#include "absl/strings/cord.h"
#include "google/rpc/error_details.pb.h"

namespace ampd {
namespace {

constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";

}  // namespace

absl::Status TryAgain(absl::string_view why, absl::Duration delay) {
  return WithRetryInfo(absl::ResourceExhaustedError(why), delay);
}

absl::Status WithRetryInfo(absl::Status status, absl::Duration delay) {
  google::rpc::RetryInfo info;
  const int64_t nanos = absl::ToInt64Nanoseconds(delay);
  info.mutable_retry_delay()->set_seconds(nanos / 1'000'000'000);
  info.mutable_retry_delay()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  status.SetPayload(kRetryInfoUrl, absl::Cord(info.SerializeAsString()));
  return status;
}

}  // namespace ampd
