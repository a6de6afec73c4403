// Where a call comes from.
#ifndef AMPD_SERVER_SERVICE_CALL_PEER_H_
#define AMPD_SERVER_SERVICE_CALL_PEER_H_

#include <grpcpp/server_context.h>

#include <string>

#include "absl/strings/string_view.h"

namespace ampd {

// Metadata of calls that the daemon makes to itself for a client of its HTTP port: that client, as gRPC writes peers.
inline constexpr char kHttpPeerKey[] = "ampd-http-peer";

// The peer as gRPC writes it: "ipv4:10.0.0.7:51334"; of a call made within the daemon what kHttpPeerKey says. Nobody
// else's metadata is looked at.
std::string CallPeer(const grpc::ServerContextBase& context);

// Whether `peer` is what gRPC calls a caller within the process, which has no address.
bool IsWithinProcess(absl::string_view peer);

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_CALL_PEER_H_
