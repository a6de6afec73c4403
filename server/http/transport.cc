#include "server/http/transport.h"

#include <sys/socket.h>

#include <cerrno>

namespace ampd {
namespace {

class Plain final : public Transport {
 public:
  explicit Plain(int socket) : socket_(socket) {}

  IoResult Read(char* buffer, size_t size) override {
    const ssize_t got = recv(socket_, buffer, size, 0);
    if (got < 0) return FailedIo(IoResult::State::kWantsRead);
    if (got == 0) return {IoResult::State::kEnd};
    return {IoResult::State::kDone, static_cast<size_t>(got)};
  }
  IoResult Write(absl::string_view bytes) override {
    const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) return FailedIo(IoResult::State::kWantsWrite);
    return {IoResult::State::kDone, static_cast<size_t>(sent)};
  }
  IoResult SendEnd() override {
    shutdown(socket_, SHUT_WR);
    return {IoResult::State::kDone};
  }
  bool is_in_handshake() const override { return false; }
  bool is_tls() const override { return false; }
  bool has_certificate() const override { return false; }

 private:
  const int socket_;
};

}  // namespace

std::unique_ptr<Transport> PlainTransport(int socket) { return std::make_unique<Plain>(socket); }

IoResult FailedIo(IoResult::State wants) {
  const bool not_now = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  return {not_now ? wants : IoResult::State::kFailed};
}

}  // namespace ampd
