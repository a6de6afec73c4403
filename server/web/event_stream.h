// Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).
#ifndef AMPD_SERVER_WEB_EVENT_STREAM_H_
#define AMPD_SERVER_WEB_EVENT_STREAM_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/http/exchange.h"

namespace ampd {

// After this time without anything to say a stream says that it is there, which also shows whether anybody listens.
inline constexpr absl::Duration kHeartbeat = absl::Seconds(10);

// Used by one thread. What is written waits for the client, but not for one that takes nothing for 2 s: false then, and
// the stream is over.
class EventStream {
 public:
  // Answers the exchange, which outlives the stream.
  explicit EventStream(HttpExchange* exchange);

  // `data` has no line breaks but at its end. `event` empty: a "message".
  bool Send(absl::string_view event, absl::string_view data);
  // Likewise, as event number `id`: where a client that comes back goes on.
  bool SendNumbered(uint64_t id, absl::string_view data);
  // That `id` was passed, without an event.
  bool Pass(uint64_t id);
  // A heartbeat, if one is due.
  bool Beat();

 private:
  bool Write(absl::string_view text);

  HttpExchange* const exchange_;
  // Monotonic.
  absl::Duration written_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_WEB_EVENT_STREAM_H_
