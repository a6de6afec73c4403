// A unary call that waits for long, and tells when its caller goes away meanwhile.
#ifndef AMPD_SERVER_SERVICE_LEAVABLE_CALL_H_
#define AMPD_SERVER_SERVICE_LEAVABLE_CALL_H_

#include <grpcpp/support/server_callback.h>

#include <memory>

#include "server/service/departure.h"

namespace ampd {

// Frees itself once the call is over, after Finish().
class LeavableCall final : public grpc::ServerUnaryReactor {
 public:
  // The caller's: cancelled the call, hung up, or let its deadline pass. May outlive the call; somebody still has to
  // finish that.
  const std::shared_ptr<Departure>& departure() const { return departure_; }

 private:
  void OnCancel() override { departure_->Go(); }
  void OnDone() override { delete this; }

  const std::shared_ptr<Departure> departure_ = std::make_shared<Departure>();
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_LEAVABLE_CALL_H_
