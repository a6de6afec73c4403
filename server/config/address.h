// "HOST:PORT" as it stands in flags and in the ready line.
#ifndef AMPD_SERVER_CONFIG_ADDRESS_H_
#define AMPD_SERVER_CONFIG_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ampd {

struct Address {
  // Without brackets.
  std::string host;
  // 0 picks a free one.
  int port = 0;

  // "HOST:PORT", with brackets around an IPv6 address.
  std::string ToString() const;
  // Reached from this machine alone: 127.0.0.0/8, ::1 or "localhost".
  bool IsLoopback() const;
};

// INVALID_ARGUMENT unless HOST:PORT or [IPV6]:PORT with a port of 0 to 65535 and a host without blanks.
absl::StatusOr<Address> ParseAddress(absl::string_view text);

}  // namespace ampd

#endif  // AMPD_SERVER_CONFIG_ADDRESS_H_
