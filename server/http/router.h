// Which handler answers which path of the HTTP port.
#ifndef AMPD_SERVER_HTTP_ROUTER_H_
#define AMPD_SERVER_HTTP_ROUTER_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/http/exchange.h"

namespace ampd {

// Filled first; then thread safe.
class Router {
 public:
  // The parts of the path that stand where the pattern has {}, decoded, in order; none is empty.
  using Arguments = std::vector<std::string>;
  // Answers the exchange. Called from many threads at a time.
  using Handler = std::function<void(HttpExchange& exchange, const Arguments& arguments)>;

  // `method`: "GET", which answers HEAD too, "POST" or "DELETE". `pattern`: "/api/v1/jobs/{}/events". Of two patterns
  // that fit, the one added first holds; so exact ones are added before those with {}.
  void Add(absl::string_view method, absl::string_view pattern, Handler handler);

  // Answers `exchange`: by the handler of its path and method, else 404 NOT_FOUND, 405 UNIMPLEMENTED with Allow, or 400
  // INVALID_ARGUMENT for a path that is none. Gives the pattern, or "" where no pattern fits.
  std::string Serve(HttpExchange& exchange) const;

 private:
  struct Route {
    std::string method;
    std::string pattern;
    std::vector<std::string> parts;
    Handler handler;
  };

  std::vector<Route> routes_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_HTTP_ROUTER_H_
