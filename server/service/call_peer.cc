#include "server/service/call_peer.h"

namespace ampd {

bool IsWithinProcess(absl::string_view peer) { return peer == "unknown"; }

std::string CallPeer(const grpc::ServerContextBase& context) {
  std::string peer = context.peer();
  if (!IsWithinProcess(peer)) return peer;
  const auto [first, last] = context.client_metadata().equal_range(kHttpPeerKey);
  return first == last ? peer : std::string(first->second.data(), first->second.size());
}

}  // namespace ampd
