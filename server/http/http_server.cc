#include "server/http/http_server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "server/files/descriptors.h"
#include "server/http/listening_socket.h"
#include "server/http/socket_exchange.h"

namespace ampd {
namespace {

constexpr char kPlainText[] = "text/plain; charset=utf-8";
// The version of the exposition format is part of its type.
constexpr char kExposition[] = "text/plain; version=0.0.4; charset=utf-8";
// Of a client, for a thread.
constexpr size_t kMaxWaiting = 64;
// They compute, so that more would not be faster.
constexpr int kHandshakeThreads = 2;
// Of a client; its others wait where they can be closed for the sake of more.
constexpr size_t kMaxHandshakes = 2;

// The others are for the process's own files, workers and gRPC.
int QuarterOfDescriptors() { return static_cast<int>(ShareOfDescriptors(4, 1 << 20)); }

HttpResponse TooMany() {
  HttpResponse response = ErrorResponse(absl::UnavailableError("too many requests are waiting; try again"));
  response.headers.emplace_back("Retry-After", "1");
  return response;
}

}  // namespace

HttpServer::HttpServer(Options options)
    : options_(std::move(options)),
      queue_(std::max(1, options_.threads * 3 / 4), kMaxWaiting),
      handshakes_(1, kMaxHandshakes) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(Options options) {
  AMPD_ASSIGN_OR_RETURN(ListeningSocket listening, Listen(options.listen));
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(options)));
  server->address_ = std::move(listening.address);
  server->AddOwnRoutes();
  AMPD_RETURN_IF_ERROR(server->StartConnections(std::move(listening.socket)));
  for (int i = 0; i < server->options_.threads; ++i) {
    server->threads_.emplace_back([self = server.get()] {
      self->ServeAll(&self->queue_, [self](Connection* connection) { self->Answer(connection); });
    });
  }
  for (int i = 0; server->options_.tls && i < kHandshakeThreads; ++i) {
    server->threads_.emplace_back([self = server.get()] { self->ServeAll(&self->handshakes_, ReadOnce); });
  }
  return server;
}

absl::Status HttpServer::StartConnections(UniqueFd listener) {
  Connections::Options options;
  options.max_connections = std::min(options_.max_connections, QuarterOfDescriptors());
  options.request_time = options_.request_time;
  options.on_refused = options_.on_refused;
  options.on_pause = options_.on_pause;
  options.on_request = [this](std::unique_ptr<Connection> connection) {
    // What is no request needs no thread.
    if (connection->reader.status().ok()) connection = queue_.Put(std::move(connection));
    if (connection != nullptr) Refuse(connection.get());
    return connection;
  };
  if (options_.tls) {
    options.transport = [this](int socket) -> std::unique_ptr<Transport> {
      const std::shared_ptr<const TlsContext> context = options_.tls();
      return context == nullptr ? nullptr : context->NewTransport(socket);
    };
    options.on_handshake = [this](std::unique_ptr<Connection> connection) {
      return handshakes_.Put(std::move(connection));
    };
  }
  AMPD_ASSIGN_OR_RETURN(connections_, Connections::Start(std::move(listener), std::move(options)));
  return absl::OkStatus();
}

HttpServer::~HttpServer() {
  if (connections_ == nullptr) return;
  connections_->Stop();
  queue_.Close();
  handshakes_.Close();
  for (std::thread& thread : threads_) thread.join();
}

void HttpServer::AddOwnRoutes() {
  const auto send = [](HttpExchange& exchange, int status, const char* type, std::string body) {
    exchange.Send({status, type, {}, std::move(body)});
  };
  options_.router.Add("GET", "/metrics", [this, send](HttpExchange& exchange, const Router::Arguments&) {
    send(exchange, 200, kExposition, options_.metrics ? options_.metrics() : "");
  });
  options_.router.Add("GET", "/healthz", [send](HttpExchange& exchange, const Router::Arguments&) {
    send(exchange, 200, kPlainText, "ok\n");
  });
  options_.router.Add("GET", "/readyz", [this, send](HttpExchange& exchange, const Router::Arguments&) {
    const absl::Status ready = options_.ready ? options_.ready() : absl::OkStatus();
    const std::string note = ready.ok() && options_.ready_note ? options_.ready_note() : "";
    if (ready.ok()) return send(exchange, 200, kPlainText, absl::StrCat("ok", note.empty() ? "" : "; ", note, "\n"));
    send(exchange, 503, kPlainText, absl::StrCat(ready.message(), "\n"));
  });
}

void HttpServer::ServeAll(FairQueue* queue, const std::function<void(Connection*)>& serve) {
  while (std::unique_ptr<Connection> connection = queue->Take()) {
    const std::string client = connection->client;
    serve(connection.get());
    connections_->GiveBack(std::move(connection));
    queue->Done(client);
  }
}

// Health is for whoever watches the machine, as over gRPC.
bool HttpServer::LacksCertificate(const HttpRequest& request) const {
  if (!options_.client_certificates || request.has_certificate) return false;
  return request.path != "/healthz" && request.path != "/readyz";
}

void HttpServer::Answer(Connection* connection) {
  SocketExchange exchange(connection);
  std::string route;
  if (LacksCertificate(exchange.request())) {
    exchange.Send(ErrorResponse(
        absl::PermissionDeniedError("clients of this server must show a certificate (tls.client_ca), and none came")));
  } else {
    route = options_.router.Serve(exchange);
  }
  if (options_.listener) options_.listener(route, exchange.status());
}

void HttpServer::Refuse(Connection* connection) {
  SocketExchange exchange(connection);
  const RequestReader& reader = connection->reader;
  exchange.Send(reader.status().ok() ? TooMany() : ErrorResponse(reader.status(), reader.http_status()));
  if (options_.listener) options_.listener("", exchange.status());
}

}  // namespace ampd
