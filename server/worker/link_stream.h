// One gRPC stream from a worker to its daemon.
#ifndef AMPD_SERVER_WORKER_LINK_STREAM_H_
#define AMPD_SERVER_WORKER_LINK_STREAM_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ampd/v1/worker_link.pb.h"

namespace ampd {

// Driven by one thread; gRPC's own threads only fill its inbox and call `wake`, which must not block.
class LinkStream {
 public:
  // Dials `uri` on a fresh channel, so that an earlier failure does not delay this one.
  LinkStream(const std::string& uri, std::function<void()> wake);
  // Cancels the stream and waits for its end.
  ~LinkStream();

  // True when a message may be written.
  bool writable() const;
  // Only when writable().
  void Write(v1::WorkerMessage message);
  // Messages since the last call, in order.
  std::vector<v1::DaemonMessage> TakeMessages();
  // How the stream ended; nullopt while it lives.
  std::optional<absl::Status> ended() const;
  void Cancel();

 private:
  class Reactor;
  std::unique_ptr<Reactor> reactor_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_WORKER_LINK_STREAM_H_
