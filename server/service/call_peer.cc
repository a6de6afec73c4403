#include "server/service/call_peer.h"

#include "absl/strings/match.h"

namespace ampd {
namespace {

// Sockets have a scheme; a channel within the process has no address.
bool IsWithinProcess(const std::string& peer) {
  return !absl::StartsWith(peer, "ipv4:") && !absl::StartsWith(peer, "ipv6:") && !absl::StartsWith(peer, "unix:");
}

}  // namespace

std::string CallPeer(const grpc::ServerContextBase& context) {
  std::string peer = context.peer();
  if (!IsWithinProcess(peer)) return peer;
  const auto [first, last] = context.client_metadata().equal_range(kHttpPeerKey);
  return first == last ? peer : std::string(first->second.data(), first->second.size());
}

}  // namespace ampd
