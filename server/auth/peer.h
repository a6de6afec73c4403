// Where a call comes from.
#ifndef AMPD_SERVER_AUTH_PEER_H_
#define AMPD_SERVER_AUTH_PEER_H_

#include <string>

#include "absl/strings/string_view.h"

namespace ampd {

// Of a peer as gRPC writes it ("ipv4:10.0.0.7:51334", "ipv6:%5B2001:db8::1%5D:51334", "unix:/path") what one client has
// for all its connections: "ipv4:10.0.0.7", "ipv6:2001:db8::/64", since hosts get 2^64 addresses, "unix:". IPv4 within
// IPv6 is IPv4. What is none of these is given back as it is.
std::string PeerAddress(absl::string_view peer);

}  // namespace ampd

#endif  // AMPD_SERVER_AUTH_PEER_H_
