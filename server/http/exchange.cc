#include "server/http/exchange.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "proto/spec/resolve.h"
#include "proto/spec/text.h"

namespace ampd {
namespace {

constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";

// Whole seconds, at least 1; nullopt: nobody said that trying again helps.
std::optional<int64_t> RetrySeconds(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryInfoUrl);
  google::rpc::RetryInfo info;
  if (!payload || !info.ParseFromString(std::string(*payload))) return std::nullopt;
  return std::max<int64_t>(1, info.retry_delay().seconds() + (info.retry_delay().nanos() > 0 ? 1 : 0));
}

}  // namespace

std::optional<std::string> HttpRequest::Header(absl::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (absl::EqualsIgnoreCase(key, name)) return value;
  }
  return std::nullopt;
}

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

const char* ReasonOf(int http_status) {
  switch (http_status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 206:
      return "Partial Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 416:
      return "Range Not Satisfiable";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return http_status >= 500 ? "Internal Server Error" : http_status >= 400 ? "Bad Request" : "OK";
  }
}

HttpResponse ErrorResponse(const absl::Status& status, std::optional<int> http_status) {
  std::vector<PlacedViolation> violations;
  for (FieldViolation& violation : FieldViolationsOf(status)) {
    violations.push_back({std::move(violation.field), std::move(violation.description)});
  }
  return ErrorResponse(status, http_status, violations);
}

HttpResponse ErrorResponse(const absl::Status& status, std::optional<int> http_status,
                           const std::vector<PlacedViolation>& violations) {
  HttpResponse response;
  response.status = http_status.value_or(HttpStatusOf(status.code()));
  response.content_type = "application/json";
  response.body = absl::StrCat("{\"code\": ", QuoteJson(absl::StatusCodeToString(status.code())),
                               ", \"message\": ", QuoteJson(status.message()));
  const char* separator = ", \"violations\": [";
  for (const PlacedViolation& violation : violations) {
    absl::StrAppend(&response.body, separator, "{\"field\": ", QuoteJson(violation.field),
                    ", \"description\": ", QuoteJson(violation.description));
    if (violation.line > 0) absl::StrAppend(&response.body, ", \"line\": ", violation.line);
    response.body += "}";
    separator = ", ";
  }
  absl::StrAppend(&response.body, violations.empty() ? "}\n" : "]}\n");
  if (const auto seconds = RetrySeconds(status)) response.headers.emplace_back("Retry-After", absl::StrCat(*seconds));
  return response;
}

}  // namespace ampd
