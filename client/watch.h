// Following one job's events over as many connections as it takes.
#ifndef AMPD_CLIENT_WATCH_H_
#define AMPD_CLIENT_WATCH_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ampd/v1/event.pb.h"
#include "client/connection.h"
#include "client/interrupt.h"

namespace ampd::client {

struct WatchOptions {
  std::string job_id;
  // Sequence of the last event already seen.
  uint64_t after_sequence = 0;
  // A lost connection is tried again for this long; the time starts anew with every event, and after a connection
  // without one. The first connection is tried once, unless the server has answered other calls before.
  absl::Duration give_up_after = absl::Minutes(10);
  // What lasted so long was a connection, though no event came: dialling takes 10 s an address at most.
  absl::Duration longest_dial = absl::Seconds(30);
  absl::Duration first_delay = absl::Milliseconds(200);
  absl::Duration longest_delay = absl::Seconds(2);
  // When watching ends in any case, with DEADLINE_EXCEEDED.
  absl::Time deadline = absl::InfiniteFuture();
};

struct WatchCallbacks {
  // Each event once, in order.
  std::function<void(const v1::JobEvent&)> on_event;
  // The connection was lost; called once for each loss, not for every attempt.
  std::function<void(const absl::Status&)> on_lost;
  // The first event after a loss arrived.
  std::function<void()> on_resumed;
};

// Returns the terminal event's state change. Errors: CANCELLED when `interrupt` (may be null) came; UNAVAILABLE when
// the server could not be reached, or not again; what the server refused; DATA_LOSS when it left out events.
absl::StatusOr<v1::StateChange> WatchToTheEnd(Connection* connection, const WatchOptions& options, Interrupt* interrupt,
                                              const WatchCallbacks& callbacks);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_WATCH_H_
