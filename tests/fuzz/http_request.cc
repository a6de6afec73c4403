// What a client sends to the HTTP port: the request out of its bytes, however they are cut (the first byte says how);
// the path, the query and the headers as the API looks at them; and that whatever it is gets one answer, in JSON.
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "proto/spec/event_kinds.h"
#include "server/http/request_reader.h"
#include "server/http/router.h"
#include "server/web/access.h"
#include "server/web/byte_range.h"
#include "server/web/query.h"
#include "tests/fuzz/input.h"

namespace ampd::fuzz {
namespace {

class Exchange final : public HttpExchange {
 public:
  explicit Exchange(RequestReader* reader) : reader_(reader) {}

  const HttpRequest& request() const override { return reader_->request(); }
  absl::StatusOr<std::string> ReadBody(size_t) override { return reader_->body(); }
  void Send(const HttpResponse& response) override {
    Check(response_.status == 0, "two answers");
    response_ = response;
  }
  void Begin(const HttpResponse& response, std::optional<int64_t>) override { Send(response); }
  bool Write(absl::string_view) override { return true; }
  bool IsLeft() override { return false; }
  int status() const override { return response_.status; }
  const HttpResponse& response() const { return response_; }

 private:
  RequestReader* const reader_;
  HttpResponse response_ = {0, "", {}, ""};
};

void CheckAnswer(const HttpResponse& response) {
  Check(response.status >= 200 && response.status < 600, "no status: " + std::to_string(response.status));
  for (const auto& [name, value] : response.headers) {
    Check(std::none_of(value.begin(), value.end(), absl::ascii_iscntrl), "a control character in " + name);
  }
  google::protobuf::Struct fields;
  Check(response.status < 400 || google::protobuf::util::JsonStringToMessage(response.body, &fields).ok(),
        "no JSON: " + response.body);
}

void Answer(HttpExchange& exchange, const absl::Status& status) {
  CheckError(status);
  exchange.Send(status.ok() ? HttpResponse() : ErrorResponse(status));
}

// As JsonApi does.
absl::Status Look(const HttpRequest& request, const Router::Arguments& arguments) {
  for (const std::string& argument : arguments) {
    Check(!argument.empty() && !absl::StrContains(argument, '/') && argument != "..", "an argument that is none");
  }
  for (const WebPlace& place :
       {WebPlace{}, WebPlace{.tokens = true}, WebPlace{.is_loopback = false, .insecure = true}}) {
    CheckError(CheckOrigin(request, place));
  }
  const std::string cookie = SessionCookie(request);
  Check(absl::StartsWith(cookie, "ampd_session"), cookie);
  CookieOf(request, cookie);
  const absl::StatusOr<std::optional<std::string>> secret = BearerOf(request);
  if (!secret.ok()) return secret.status();
  Check(!*secret || IsSecretText(**secret), "a secret that is none");
  for (const int64_t size : {int64_t{0}, int64_t{1000}, INT64_MAX}) {
    const auto range = RangeOf(request, size, "\"tag\"");
    CheckError(range.status());
    if (!range.ok() || !*range) continue;
    const auto [offset, length] = **range;
    Check(offset >= 0 && length >= 1 && offset <= size - length, "a range that is not of the file");
  }
  const absl::StatusOr<Query> query = Query::Parse(request.query, {"page_size", "states", "kinds", "view"});
  if (!query.ok()) return query.status();
  const absl::StatusOr<int64_t> number = query->Integer("page_size", 1, 1000, 7);
  if (!number.ok()) return number.status();
  Check(*number >= 1 && *number <= 1000, "out of range");
  const std::vector<std::string> kinds = query->List("kinds");
  const auto payloads = PayloadsOf(kinds);
  Check(!payloads.ok() || payloads->size() == kinds.size(), "kinds are lost");
  return payloads.status();
}

Router MakeRouter() {
  Router router;
  const auto look = [](HttpExchange& exchange, const Router::Arguments& arguments) {
    Answer(exchange, Look(exchange.request(), arguments));
  };
  for (const char* path : {"/", "/metrics", "/api/v1/jobs", "/api/v1/jobs/{}", "/api/v1/jobs/{}/artifacts/{}"}) {
    router.Add("GET", path, look);
  }
  for (const char* path : {"/api/v1/session", "/api/v1/jobs/{}/cancel"}) router.Add("POST", path, look);
  router.Add("DELETE", "/api/v1/session", look);
  return router;
}

void CheckSame(RequestReader& a, RequestReader& b) {
  Check(a.done() == b.done() && a.begun() == b.begun() && a.http_status() == b.http_status() &&
            a.is_body_too_long() == b.is_body_too_long(),
        "cut otherwise it ends otherwise");
  Check(a.body() == b.body() && a.request().path == b.request().path && a.request().query == b.request().query &&
            a.request().method == b.request().method && a.request().headers == b.request().headers,
        "cut otherwise it is another request");
}

}  // namespace
}  // namespace ampd::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ampd;
  static const Router& router = *new Router(fuzz::MakeRouter());
  if (size == 0) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  RequestReader reader, cut;
  reader.Take(bytes);
  for (size_t step = 1 + data[0], at = 0; at < bytes.size(); at += step) {
    cut.Take(bytes.substr(at, step));
    cut.TakeExpectation();
  }
  fuzz::CheckSame(reader, cut);
  fuzz::Check(reader.body().size() <= kMaxBodyBytes && reader.request().headers.size() <= kMaxHeaders, "too much");
  if (!reader.done()) reader.TakeEnd();
  fuzz::CheckError(reader.status());
  if (!reader.status().ok()) return fuzz::CheckAnswer(ErrorResponse(reader.status(), reader.http_status())), 0;
  fuzz::Exchange exchange(&reader);
  const auto& headers = reader.request().headers;
  const auto is_host = [](const auto& header) { return absl::EqualsIgnoreCase(header.first, "Host"); };
  fuzz::Check(std::count_if(headers.begin(), headers.end(), is_host) <= 1, "several hosts");
  fuzz::Check(!absl::StartsWithIgnoreCase(reader.request().path, "http://"), "an absolute target as a path");
  router.Serve(exchange);
  fuzz::CheckAnswer(exchange.response());
  return 0;
}
