// absl::Status as gRPC sends it.
#ifndef AMPD_SERVER_SERVICE_GRPC_STATUS_H_
#define AMPD_SERVER_SERVICE_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace ampd {

// Code and message; payloads (such as google.rpc.BadRequest) become the details of a google.rpc.Status in
// error_details(), as every gRPC library expects them. Long messages are cut, and of many violations the first are
// kept: HTTP/2 headers carry them.
grpc::Status ToGrpcStatus(const absl::Status& status);

// The way back.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_GRPC_STATUS_H_
