#include "server/http/socket_exchange.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ampd {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// For a client that takes nothing.
constexpr milliseconds kStall{2000};

std::string HeadOf(const HttpResponse& response, std::optional<int64_t> length) {
  std::string head = absl::StrCat("HTTP/1.1 ", response.status, " ", ReasonOf(response.status), "\r\n");
  if (!response.content_type.empty()) absl::StrAppend(&head, "Content-Type: ", response.content_type, "\r\n");
  if (length) absl::StrAppend(&head, "Content-Length: ", *length, "\r\n");
  bool is_cached = false;
  for (const auto& [name, value] : response.headers) {
    absl::StrAppend(&head, name, ": ", value, "\r\n");
    is_cached = is_cached || name == "Cache-Control";
  }
  if (!is_cached) absl::StrAppend(&head, "Cache-Control: no-store\r\n");
  return absl::StrCat(head, "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n");
}

// Until the socket is ready for what is wanted of it, or has failed. False: not before `deadline`.
bool WaitFor(IoResult::State state, int socket, SteadyTime deadline) {
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now()).count();
    if (left <= 0) return false;
    pollfd wanted = {socket, POLLOUT, 0};
    if (state == IoResult::State::kWantsRead) wanted.events = POLLIN;
    const int ready = poll(&wanted, 1, static_cast<int>(std::min<int64_t>(left, 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

}  // namespace

SocketExchange::SocketExchange(Connection* connection) : connection_(connection) {
  HttpRequest& request = connection->reader.request();
  request.peer = connection->peer;
  request.is_tls = connection->transport->is_tls();
  request.has_certificate = connection->transport->has_certificate();
}

absl::StatusOr<std::string> SocketExchange::ReadBody(size_t max_bytes) {
  RequestReader& reader = connection_->reader;
  if (reader.is_body_too_long() || reader.body().size() > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a body of more than ", std::min(max_bytes, kMaxBodyBytes), " bytes"));
  }
  return std::exchange(reader.body(), "");
}

void SocketExchange::Send(const HttpResponse& response) {
  const bool has_body = response.status != 204 && response.status != 304;
  status_ = response.status;
  connection_->output = HeadOf(response, has_body ? std::optional<int64_t>(response.body.size()) : std::nullopt);
  if (has_body && request().method != "HEAD") absl::StrAppend(&connection_->output, response.body);
}

void SocketExchange::Begin(const HttpResponse& response, std::optional<int64_t> length) {
  status_ = response.status;
  Write(HeadOf(response, length));
}

bool SocketExchange::Write(absl::string_view bytes) {
  alive_ = alive_ && WriteAll(bytes);
  return alive_;
}

bool SocketExchange::IsLeft() {
  // Told of though bytes of the client may lie before its end.
  pollfd wanted = {connection_->socket.get(), POLLRDHUP, 0};
  return poll(&wanted, 1, 0) > 0;
}

bool SocketExchange::WriteAll(absl::string_view bytes) {
  const SteadyTime limit = steady_clock::now() + TimeToTake(bytes.size());
  SteadyTime stalled = steady_clock::now() + kStall;
  while (!bytes.empty()) {
    const IoResult sent = connection_->transport->Write(bytes);
    if (sent.state == IoResult::State::kDone) {
      bytes.remove_prefix(sent.bytes);
      stalled = steady_clock::now() + kStall;
    } else if (sent.state != IoResult::State::kWantsRead && sent.state != IoResult::State::kWantsWrite) {
      return false;
    } else if (!WaitFor(sent.state, connection_->socket.get(), std::min(stalled, limit))) {
      return false;
    }
    if (steady_clock::now() > limit) return bytes.empty();
  }
  return true;
}

}  // namespace ampd
