// Answers a unary call.
#ifndef AMPD_SERVER_SERVICE_ANSWER_H_
#define AMPD_SERVER_SERVICE_ANSWER_H_

#include <grpcpp/support/server_callback.h>

#include <utility>

#include "server/jobs/controller.h"
#include "server/service/grpc_status.h"

namespace ampd {

// Sets `response` and finishes the call, on whatever thread it is called. Both live until then.
template <typename T>
Controller::Done<T> Answer(grpc::ServerUnaryReactor* reactor, T* response) {
  return [reactor, response](absl::StatusOr<T> result) {
    if (result.ok()) *response = *std::move(result);
    reactor->Finish(ToGrpcStatus(result.status()));
  };
}

// A stream, in either direction, that ends before it began; frees itself. `Reactor`: grpc::ServerReadReactor<Request>
// or grpc::ServerWriteReactor<Response>.
template <typename Reactor>
class Refused final : public Reactor {
 public:
  static Refused* With(const absl::Status& status) { return new Refused(status); }

 private:
  explicit Refused(const absl::Status& status) { this->Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_ANSWER_H_
