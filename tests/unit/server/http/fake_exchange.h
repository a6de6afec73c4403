// An exchange without a connection: a request of the test's, and what was answered.
#ifndef AMPD_TESTS_UNIT_SERVER_HTTP_FAKE_EXCHANGE_H_
#define AMPD_TESTS_UNIT_SERVER_HTTP_FAKE_EXCHANGE_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/http/exchange.h"

namespace ampd {

class FakeExchange final : public HttpExchange {
 public:
  // Whether the client has gone; empty: it has not.
  std::function<bool()> is_left;

  FakeExchange(std::string method, std::string path, HttpHeaders headers = {}, std::string body = "")
      : body_(std::move(body)) {
    const size_t mark = path.find('?');
    request_ = {std::move(method), path.substr(0, mark), mark == std::string::npos ? "" : path.substr(mark + 1),
                "ipv4:127.0.0.1:4321", std::move(headers)};
  }

  const HttpRequest& request() const override { return request_; }
  absl::StatusOr<std::string> ReadBody(size_t max_bytes) override {
    if (body_.size() > max_bytes) return absl::InvalidArgumentError("too long");
    return body_;
  }
  void Send(const HttpResponse& response) override { response_ = response; }
  void Begin(const HttpResponse& response, std::optional<int64_t> length) override {
    response_ = response;
    response_.body.clear();
    length_ = length;
  }
  bool Write(absl::string_view bytes) override {
    absl::StrAppend(&response_.body, bytes);
    return true;
  }
  bool IsLeft() override { return is_left && is_left(); }
  int status() const override { return response_.status; }

  const HttpResponse& response() const { return response_; }
  // Of Begin().
  std::optional<int64_t> length() const { return length_; }
  std::string ResponseHeader(absl::string_view name) const {
    for (const auto& [key, value] : response_.headers) {
      if (key == name) return value;
    }
    return "";
  }

 private:
  HttpRequest request_;
  std::string body_;
  HttpResponse response_ = {0, "", {}, ""};
  std::optional<int64_t> length_;
};

}  // namespace ampd

#endif  // AMPD_TESTS_UNIT_SERVER_HTTP_FAKE_EXCHANGE_H_
