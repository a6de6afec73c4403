#include "server/http/http_server.h"

#include <civetweb.h>
#include <string.h>

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

struct Response {
  int status;
  const char* reason;
  const char* type;
  std::string body;
};

void Send(mg_connection* connection, const Response& response, bool with_body) {
  const std::string head = absl::StrCat(
      "HTTP/1.1 ", response.status, " ", response.reason, "\r\nContent-Type: ", response.type,
      "\r\nContent-Length: ", response.body.size(), "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff",
      response.status == 405 ? "\r\nAllow: GET, HEAD" : "", "\r\nConnection: close\r\n\r\n");
  mg_write(connection, head.data(), head.size());
  if (with_body) mg_write(connection, response.body.data(), response.body.size());
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
  const std::string threads = absl::StrCat(server->options_.threads);
  const std::string listen = absl::StrCat(address.host, ":", address.port);
  // A connection without a whole head holds a thread until the timeout, so that many threads and a short timeout are
  // what a few hundred of them do not fill. The size bounds a request's head. No files are served.
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
                            nullptr};
  mg_callbacks callbacks = {};
  callbacks.log_message = KeepMessage;
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

int HttpServer::HandleRequest(mg_connection* connection, void* self) {
  const Options& options = static_cast<HttpServer*>(self)->options_;
  const mg_request_info* request = mg_get_request_info(connection);
  const std::string path = request->local_uri == nullptr ? "" : request->local_uri;
  const std::string method = request->request_method == nullptr ? "" : request->request_method;
  Response response = {404, "Not Found", kPlainText, "not found\n"};
  if (method != "GET" && method != "HEAD") {
    response = {405, "Method Not Allowed", kPlainText, "only GET and HEAD\n"};
  } else if (path == "/metrics") {
    response = {200, "OK", kExposition, options.metrics ? options.metrics() : ""};
  } else if (path == "/healthz") {
    response = {200, "OK", kPlainText, "ok\n"};
  } else if (path == "/readyz") {
    const absl::Status ready = options.ready ? options.ready() : absl::OkStatus();
    response = {200, "OK", kPlainText, "ok\n"};
    if (!ready.ok()) response = {503, "Service Unavailable", kPlainText, absl::StrCat(ready.message(), "\n")};
  }
  Send(connection, response, method != "HEAD");
  return response.status;
}

}  // namespace ampd
