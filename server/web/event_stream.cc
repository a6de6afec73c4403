#include "server/web/event_stream.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/events/clock.h"

namespace ampd {

EventStream::EventStream(HttpExchange* exchange) : exchange_(exchange), written_(SystemClock().Monotonic()) {
  HttpResponse head;
  head.content_type = "text/event-stream";
  // A proxy that gathers answers would hold the events back.
  head.headers = {{"X-Accel-Buffering", "no"}, {"Cross-Origin-Resource-Policy", "same-origin"}};
  exchange_->Begin(head, std::nullopt);
  Write("retry: 2000\n\n");
}

bool EventStream::Write(absl::string_view text) {
  written_ = SystemClock().Monotonic();
  return exchange_->Write(text);
}

bool EventStream::Send(absl::string_view event, absl::string_view data) {
  const std::string kind = event.empty() ? "" : absl::StrCat("event: ", event, "\n");
  return Write(absl::StrCat(kind, "data: ", absl::StripTrailingAsciiWhitespace(data), "\n\n"));
}

bool EventStream::SendNumbered(uint64_t id, absl::string_view data) {
  return Write(absl::StrCat("id: ", id, "\ndata: ", absl::StripTrailingAsciiWhitespace(data), "\n\n"));
}

bool EventStream::Pass(uint64_t id) { return Write(absl::StrCat("id: ", id, "\n\n")); }

bool EventStream::Beat() { return SystemClock().Monotonic() - written_ < kHeartbeat || Write(":\n\n"); }

}  // namespace ampd
