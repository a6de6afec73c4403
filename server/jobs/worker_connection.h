// What the controller needs of a worker's stream.
#ifndef AMPD_SERVER_JOBS_WORKER_CONNECTION_H_
#define AMPD_SERVER_JOBS_WORKER_CONNECTION_H_

#include "absl/status/status.h"
#include "ampd/v1/worker_link.pb.h"

namespace ampd {

// One stream of one worker. Called on the controller's thread; must not block, must not call the controller back
// from within (posting from another thread is fine).
class WorkerConnection {
 public:
  virtual ~WorkerConnection() = default;
  // Queues `message`; order is kept. Without effect on a closed stream.
  virtual void Send(v1::DaemonMessage message) = 0;
  // Ends the stream with `status` after what was sent. UNAVAILABLE: the worker connects again after a back-off, with
  // every event since the last acknowledged one. Other errors are final: the worker stops training and exits.
  virtual void Close(absl::Status status) = 0;
  // False while nothing is read from the stream, as too much of it waits for the store: its silence says nothing.
  virtual bool Listens() const = 0;
};

}  // namespace ampd

#endif  // AMPD_SERVER_JOBS_WORKER_CONNECTION_H_
