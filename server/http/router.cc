#include "server/http/router.h"

#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/http/target.h"

namespace ampd {
namespace {

constexpr char kArgument[] = "{}";

std::optional<Router::Arguments> Match(const std::vector<std::string>& pattern, const std::vector<std::string>& parts) {
  if (pattern.size() != parts.size()) return std::nullopt;
  Router::Arguments arguments;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (pattern[i] == kArgument && !parts[i].empty()) {
      arguments.push_back(parts[i]);
    } else if (pattern[i] != parts[i]) {
      return std::nullopt;
    }
  }
  return arguments;
}

HttpResponse WrongMethod(std::vector<std::string> allowed) {
  const auto get = absl::c_find(allowed, "GET");
  if (get != allowed.end()) allowed.insert(get + 1, "HEAD");
  const std::string list = absl::StrJoin(allowed, ", ");
  HttpResponse response = ErrorResponse(absl::UnimplementedError(absl::StrCat("only ", list)), 405);
  response.headers.emplace_back("Allow", list);
  return response;
}

}  // namespace

void Router::Add(absl::string_view method, absl::string_view pattern, Handler handler) {
  routes_.push_back(
      {std::string(method), std::string(pattern), absl::StrSplit(pattern.substr(1), '/'), std::move(handler)});
}

std::string Router::Serve(HttpExchange& exchange) const {
  const absl::StatusOr<std::vector<std::string>> parts = SplitPath(exchange.request().path);
  if (!parts.ok()) {
    exchange.Send(ErrorResponse(parts.status()));
    return "";
  }
  const std::string& asked = exchange.request().method;
  const std::string method = asked == "HEAD" ? "GET" : asked;
  std::vector<std::string> allowed;
  std::string pattern;
  for (const Route& route : routes_) {
    const std::optional<Arguments> arguments = Match(route.parts, *parts);
    if (!arguments || (!pattern.empty() && pattern != route.pattern)) continue;
    pattern = route.pattern;
    if (route.method == method) {
      route.handler(exchange, *arguments);
      return pattern;
    }
    allowed.push_back(route.method);
  }
  exchange.Send(allowed.empty() ? ErrorResponse(absl::NotFoundError("there is nothing at this path"))
                                : WrongMethod(std::move(allowed)));
  return pattern;
}

}  // namespace ampd
