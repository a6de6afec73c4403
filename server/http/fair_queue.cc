#include "server/http/fair_queue.h"

#include <utility>

namespace ampd {

std::unique_ptr<Connection> FairQueue::Put(std::unique_ptr<Connection> connection) {
  const MutexLock lock(&mutex_);
  if (closed_) return connection;
  Client& client = clients_[connection->client];
  if (client.waiting.size() >= waiting_) return connection;
  client.waiting.push_back({put_++, std::move(connection)});
  changed_.NotifyOne();
  return nullptr;
}

FairQueue::Client* FairQueue::Next() {
  Client* next = nullptr;
  for (auto& [name, client] : clients_) {
    if (client.waiting.empty() || client.under_way >= per_client_) continue;
    if (next == nullptr || client.under_way < next->under_way ||
        (client.under_way == next->under_way && client.waiting.front().number < next->waiting.front().number)) {
      next = &client;
    }
  }
  return next;
}

std::unique_ptr<Connection> FairQueue::Take() {
  const MutexLock lock(&mutex_);
  while (!closed_) {
    if (Client* client = Next()) {
      std::unique_ptr<Connection> connection = std::move(client->waiting.front().connection);
      client->waiting.pop_front();
      ++client->under_way;
      return connection;
    }
    changed_.Wait(&mutex_);
  }
  return nullptr;
}

void FairQueue::Done(const std::string& client) {
  const MutexLock lock(&mutex_);
  const auto found = clients_.find(client);
  if (--found->second.under_way == 0 && found->second.waiting.empty()) clients_.erase(found);
  // One more of that client may be taken now.
  changed_.NotifyOne();
}

void FairQueue::Close() {
  const MutexLock lock(&mutex_);
  closed_ = true;
  for (auto& [name, client] : clients_) client.waiting.clear();
  changed_.NotifyAll();
}

}  // namespace ampd
