// The daemon's side of worker_link.proto: streams of workers, handed to the controller.
#ifndef AMPD_SERVER_SERVICE_WORKER_LINK_SERVICE_H_
#define AMPD_SERVER_SERVICE_WORKER_LINK_SERVICE_H_

#include "ampd/v1/worker_link.grpc.pb.h"
#include "server/jobs/controller.h"

namespace ampd {

// Events are read as fast as they become durable: at most kMaxUnacknowledged of a stream wait for the store.
class WorkerLinkService final : public v1::WorkerLink::CallbackService {
 public:
  static constexpr uint64_t kMaxUnacknowledged = 1024;

  // `controller` outlives the server of this service.
  explicit WorkerLinkService(Controller* controller) : controller_(controller) {}

  grpc::ServerBidiReactor<v1::WorkerMessage, v1::DaemonMessage>* Attach(grpc::CallbackServerContext* context) override;

 private:
  Controller* const controller_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_WORKER_LINK_SERVICE_H_
