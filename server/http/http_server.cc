#include "server/http/http_server.h"

#include <civetweb.h>
#include <string.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/core/status.h"

namespace ampd {
namespace {

constexpr char kPlainText[] = "text/plain; charset=utf-8";
// The version of the exposition format is part of its type.
constexpr char kExposition[] = "text/plain; version=0.0.4; charset=utf-8";

// Of a body that nobody wants.
constexpr int64_t kMaxDiscardedBytes = 1 << 20;

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

// civetweb gives no more of an address than this.
std::string PeerOf(const mg_request_info& request) {
  const absl::string_view address = request.remote_addr;
  return absl::StrContains(address, ':') ? absl::StrCat("ipv6:[", address, "]:", request.remote_port)
                                         : absl::StrCat("ipv4:", address, ":", request.remote_port);
}

std::string OrEmpty(const char* text) { return text == nullptr ? "" : text; }

class CivetExchange final : public HttpExchange {
 public:
  explicit CivetExchange(mg_connection* connection) : connection_(connection) {
    const mg_request_info& info = *mg_get_request_info(connection);
    request_.method = OrEmpty(info.request_method);
    request_.path = OrEmpty(info.local_uri_raw);
    request_.query = OrEmpty(info.query_string);
    request_.peer = PeerOf(info);
    for (int i = 0; i < info.num_headers; ++i) {
      request_.headers.emplace_back(OrEmpty(info.http_headers[i].name), OrEmpty(info.http_headers[i].value));
    }
    length_ = info.content_length;
  }

  // What is left of a body is read: else the connection is reset, and the answer may be lost with it.
  ~CivetExchange() override {
    if (!HasBody()) return;
    char buffer[4096];
    int64_t left = kMaxDiscardedBytes;
    for (int got = 1; got > 0 && left > 0; left -= got) got = mg_read(connection_, buffer, sizeof(buffer));
  }

  const HttpRequest& request() const override { return request_; }
  int status() const override { return status_; }

  absl::StatusOr<std::string> ReadBody(size_t max_bytes) override {
    if (!HasBody()) return std::string();
    const absl::Status too_long = absl::InvalidArgumentError(absl::StrCat("a body of more than ", max_bytes, " bytes"));
    if (length_ > static_cast<long long>(max_bytes)) return too_long;
    std::string body;
    char buffer[4096];
    while (true) {
      const int got = mg_read(connection_, buffer, sizeof(buffer));
      if (got < 0) return absl::InvalidArgumentError("the body ends early");
      if (got == 0) break;
      body.append(buffer, static_cast<size_t>(got));
      if (body.size() > max_bytes) return too_long;
    }
    if (length_ >= 0 && body.size() != static_cast<size_t>(length_)) {
      return absl::InvalidArgumentError("the body ends early");
    }
    return body;
  }

  void Send(const HttpResponse& response) override {
    const bool has_body = response.status != 204 && response.status != 304;
    Begin(response, has_body ? std::optional<int64_t>(response.body.size()) : std::nullopt);
    if (has_body && request_.method != "HEAD") Write(response.body);
  }

  void Begin(const HttpResponse& response, std::optional<int64_t> length) override {
    status_ = response.status;
    Write(HeadOf(response, length));
  }

  bool Write(absl::string_view bytes) override {
    alive_ = alive_ &&
             (bytes.empty() || mg_write(connection_, bytes.data(), bytes.size()) == static_cast<int>(bytes.size()));
    return alive_;
  }

 private:
  // Without either header there is none, whatever follows.
  bool HasBody() const { return request_.Header("Content-Length") || request_.Header("Transfer-Encoding"); }

  mg_connection* const connection_;
  HttpRequest request_;
  // Of the body; -1: not told.
  long long length_ = -1;
  int status_ = 0;
  bool alive_ = true;
};

// Of what civetweb refuses by itself: a head that is too long, or none.
int SendError(mg_connection* connection, int status, const char*) {
  const absl::StatusCode code = status >= 500 ? absl::StatusCode::kInternal : absl::StatusCode::kInvalidArgument;
  const HttpResponse response = ErrorResponse(absl::Status(code, "the request cannot be understood"), status);
  const std::string answer = absl::StrCat(HeadOf(response, response.body.size()), response.body);
  mg_write(connection, answer.data(), answer.size());
  return 0;
}

struct Address {
  std::string host;
  int port;
};

absl::StatusOr<Address> ParseAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  Address address;
  if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(text.substr(colon + 1), &address.port) ||
      address.port < 0 || address.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("http: \"", text, "\" is not HOST:PORT"));
  }
  address.host = text.substr(0, colon);
  // Commas and a trailing 's' or 'r' mean something to civetweb.
  if (address.host.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:[]%_") !=
      std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("http: \"", text, "\" is not HOST:PORT"));
  }
  return address;
}

// civetweb reports errors of its start through a callback only.
int KeepMessage(const mg_connection* connection, const char* message) {
  const mg_context* context = mg_get_context(connection);
  auto* text = context == nullptr ? nullptr : static_cast<std::string*>(mg_get_user_data(context));
  if (text != nullptr) *text = message;
  return 1;
}

}  // namespace

HttpServer::HttpServer(Options options) : options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(Options options) {
  AMPD_ASSIGN_OR_RETURN(const Address address, ParseAddress(options.listen));
  if (absl::StartsWith(address.host, "[") && mg_check_feature(MG_FEATURES_IPV6) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("http: \"", options.listen, "\": this system's civetweb has no IPv6; give an IPv4 address"));
  }
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(options)));
  server->AddOwnRoutes();
  const std::string threads = absl::StrCat(server->options_.threads);
  const std::string listen = absl::StrCat(address.host, ":", address.port);
  // A connection without a whole head holds a thread until the timeout, so that many threads and a short timeout are
  // what a few hundred of them do not fill. The timeout is also that of a client that takes no answer. The size bounds
  // a request's head. No files are served. Paths come as they were sent, for the router to judge; and no preflight of
  // other sites is answered, which is civetweb's default.
  const char* settings[] = {"listening_ports",
                            listen.c_str(),
                            "num_threads",
                            threads.c_str(),
                            "request_timeout_ms",
                            "2000",
                            "max_request_size",
                            "8192",
                            "enable_keep_alive",
                            "no",
                            "decode_url",
                            "no",
                            "access_control_allow_origin",
                            "",
                            "access_control_allow_methods",
                            "",
                            "access_control_allow_headers",
                            "",
                            nullptr};
  mg_callbacks callbacks = {};
  callbacks.log_message = KeepMessage;
  callbacks.http_error = SendError;
  mg_init_library(0);
  std::string message;
  server->context_ = mg_start(&callbacks, &message, settings);
  if (server->context_ == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("http: cannot listen on ", server->options_.listen, message.empty() ? "" : ": ", message));
  }
  mg_set_request_handler(server->context_, "/", &HttpServer::HandleRequest, server.get());
  mg_server_port port = {};
  if (mg_get_server_ports(server->context_, 1, &port) != 1) {
    return absl::InternalError(absl::StrCat("http: no port for ", server->options_.listen));
  }
  server->address_ = absl::StrCat(address.host, ":", port.port);
  return server;
}

HttpServer::~HttpServer() {
  if (context_ != nullptr) mg_stop(context_);
  mg_exit_library();
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
    if (ready.ok()) return send(exchange, 200, kPlainText, "ok\n");
    send(exchange, 503, kPlainText, absl::StrCat(ready.message(), "\n"));
  });
}

int HttpServer::HandleRequest(mg_connection* connection, void* self) {
  const Options& options = static_cast<HttpServer*>(self)->options_;
  CivetExchange exchange(connection);
  const std::string route = options.router.Serve(exchange);
  if (options.listener) options.listener(route, exchange.status());
  return exchange.status();
}

}  // namespace ampd
