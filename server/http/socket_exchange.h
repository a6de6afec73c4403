// A request that came over a connection, and its answer.
#ifndef AMPD_SERVER_HTTP_SOCKET_EXCHANGE_H_
#define AMPD_SERVER_HTTP_SOCKET_EXCHANGE_H_

#include <string>

#include "server/http/connection.h"
#include "server/http/exchange.h"

namespace ampd {

class SocketExchange final : public HttpExchange {
 public:
  // `connection`, whose request is done, outlives the exchange.
  explicit SocketExchange(Connection* connection);

  const HttpRequest& request() const override { return connection_->reader.request(); }
  int status() const override { return status_; }
  absl::StatusOr<std::string> ReadBody(size_t max_bytes) override;
  // Leaves it in the connection's `output`.
  void Send(const HttpResponse& response) override;
  void Begin(const HttpResponse& response, std::optional<int64_t> length) override;
  bool Write(absl::string_view bytes) override;
  bool IsLeft() override;

 private:
  bool WriteAll(absl::string_view bytes);

  Connection* const connection_;
  int status_ = 0;
  bool alive_ = true;
};

}  // namespace ampd

#endif  // AMPD_SERVER_HTTP_SOCKET_EXCHANGE_H_
