// Calls of the service, made within the daemon for clients of the HTTP port: who may do what, limits and the audit log
// are the service's own.
#ifndef AMPD_SERVER_WEB_BACKEND_H_
#define AMPD_SERVER_WEB_BACKEND_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "ampd/v1/training_service.grpc.pb.h"
#include "server/service/grpc_status.h"

namespace ampd {

// Who makes a request, as far as it shows.
struct Credentials {
  // Of a token; empty: none. One that IsSecretText().
  std::string secret;
  // As gRPC writes it: "ipv4:10.0.0.7:51334".
  std::string peer;
};

// Whether it may be sent as a header: 1 to 200 printable ASCII characters, no blanks.
bool IsSecretText(absl::string_view text);

// Thread-safe.
class Backend {
 public:
  using Stub = v1::TrainingService::Stub;
  template <typename Request, typename Response>
  using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);

  // Of a server in this process (grpc::Server::InProcessChannel).
  explicit Backend(const std::shared_ptr<grpc::Channel>& channel) : stub_(v1::TrainingService::NewStub(channel)) {}

  // The call's answer or error; DEADLINE_EXCEEDED after `timeout`.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(const Credentials& credentials, Method<Request, Response> method,
                                const Request& request, absl::Duration timeout = absl::Seconds(30)) const {
    grpc::ClientContext context;
    Prepare(credentials, &context);
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    Response response;
    const grpc::Status status = ((*stub_).*method)(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response;
  }

  absl::StatusOr<v1::Job> GetJob(const Credentials& credentials, const std::string& id) const;

  // Of a call of one's own.
  static void Prepare(const Credentials& credentials, grpc::ClientContext* context);
  Stub* stub() const { return stub_.get(); }

 private:
  const std::unique_ptr<Stub> stub_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_WEB_BACKEND_H_
