#include "server/web/slots.h"

namespace ampd {

std::unique_ptr<Slots::Lease> Slots::Take(const std::string& client, int per_client) {
  const MutexLock lock(&mutex_);
  if (taken_ >= all_) return nullptr;
  const auto found = clients_.find(client);
  if (found != clients_.end() && found->second >= per_client) return nullptr;
  ++clients_[client];
  ++taken_;
  return std::unique_ptr<Lease>(new Lease(this, client));
}

void Slots::GiveBack(const std::string& client) {
  const MutexLock lock(&mutex_);
  --taken_;
  const auto own = clients_.find(client);
  if (--own->second == 0) clients_.erase(own);
}

}  // namespace ampd
