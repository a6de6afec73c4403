// "http://HOST[:PORT]/PATH" of a service on this machine or its link.
#ifndef AMPD_SERVER_CONFIG_HTTP_URL_H_
#define AMPD_SERVER_CONFIG_HTTP_URL_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ampd {

struct HttpUrl {
  // An IP address without brackets.
  std::string host;
  int port = 80;
  // Begins with '/'; query included.
  std::string path;

  std::string ToString() const;
};

// INVALID_ARGUMENT for another scheme, a host that is no IP address (names are not looked up), a port that is none, or
// a path with anything but printable ASCII.
absl::StatusOr<HttpUrl> ParseHttpUrl(absl::string_view text);

}  // namespace ampd

#endif  // AMPD_SERVER_CONFIG_HTTP_URL_H_
