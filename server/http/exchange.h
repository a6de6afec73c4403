// One HTTP request and its answer, apart from the library that reads and writes them.
#ifndef AMPD_SERVER_HTTP_EXCHANGE_H_
#define AMPD_SERVER_HTTP_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ampd {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  // "GET".
  std::string method;
  // As sent, not decoded, without the query: "/api/v1/jobs/01hq".
  std::string path;
  // As sent, without the '?'; empty: none.
  std::string query;
  // The client, as gRPC writes it: "ipv4:10.0.0.7:51334".
  std::string peer;
  HttpHeaders headers;
  // It came by TLS of this port; and its client showed a certificate that holds.
  bool is_tls = false;
  bool has_certificate = false;

  // The value of the first header of that name, in any case; nullopt: none.
  std::optional<std::string> Header(absl::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type;
  // Beside those that every answer has.
  HttpHeaders headers;
  std::string body;
};

// Used by one thread. Answered once: by Send(), or by Begin() and any number of Write().
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;

  // The whole body; call it once. INVALID_ARGUMENT for one of more than `max_bytes`; also for one of more than
  // kMaxBodyBytes (request_reader.h), which is never read.
  virtual absl::StatusOr<std::string> ReadBody(size_t max_bytes) = 0;

  // Waits for nobody: what a slow client does not take at once is kept for it (http_server.h). Of a HEAD request the
  // body is left out.
  virtual void Send(const HttpResponse& response) = 0;

  // Sends the head (`response.body` is not looked at). `length`: of the body, bytes; nullopt: it ends with the
  // connection.
  virtual void Begin(const HttpResponse& response, std::optional<int64_t> length) = 0;
  // Waits for a slow client, but not for one that takes nothing for 2 s, nor for longer than 10 s and 1 s for each
  // 64 KiB. False: the client is gone, or too slow, and nothing more reaches it.
  virtual bool Write(absl::string_view bytes) = 0;

  // The client has hung up, or said that it sends no more, which clients that still want an answer do not do: for
  // handlers that wait for long. Waits for nothing.
  virtual bool IsLeft() = 0;

  // Of the answer; 0 before it.
  virtual int status() const = 0;
};

// {"code": ..., "message": ...} of `status`, an error; with its google.rpc.BadRequest as "violations" and its
// google.rpc.RetryInfo as Retry-After. `http_status`: in place of the one that goes with the code.
HttpResponse ErrorResponse(const absl::Status& status, std::optional<int> http_status = std::nullopt);

// A violation of what was sent as text.
struct PlacedViolation {
  std::string field;
  std::string description;
  // From 1; 0: unknown, and left out.
  int line = 0;
};

// As above, with these violations.
HttpResponse ErrorResponse(const absl::Status& status, std::optional<int> http_status,
                           const std::vector<PlacedViolation>& violations);

// The status of `code`, e.g. 404 of NOT_FOUND, as google.rpc.Code has them.
int HttpStatusOf(absl::StatusCode code);

// "Not Found".
const char* ReasonOf(int http_status);

}  // namespace ampd

#endif  // AMPD_SERVER_HTTP_EXCHANGE_H_
