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

// A call that a client streams, refused; frees itself.
template <typename Request>
class RefusedUpload final : public grpc::ServerReadReactor<Request> {
 public:
  static RefusedUpload* With(const absl::Status& status) { return new RefusedUpload(status); }

 private:
  explicit RefusedUpload(const absl::Status& status) { this->Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_ANSWER_H_
