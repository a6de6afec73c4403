// Requests, or handshakes, that wait for a thread: no client gets all of the threads.
#ifndef AMPD_SERVER_HTTP_FAIR_QUEUE_H_
#define AMPD_SERVER_HTTP_FAIR_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "engine/core/mutex.h"
#include "server/http/connection.h"

namespace ampd {

// Thread-safe.
class FairQueue {
 public:
  // Of one client at most `per_client` requests, >= 1, are taken and not done at a time, and `waiting` wait.
  FairQueue(int per_client, size_t waiting) : per_client_(per_client), waiting_(waiting) {}
  FairQueue(const FairQueue&) = delete;
  FairQueue& operator=(const FairQueue&) = delete;

  // Gives it back when too many of that client wait already, or the queue is closed; else null.
  std::unique_ptr<Connection> Put(std::unique_ptr<Connection> connection);
  // Waits for one: of the client that has the fewest under way, and of those the one that waited longest. Null once the
  // queue is closed. Done(), with its `client`, is to follow.
  std::unique_ptr<Connection> Take();
  void Done(const std::string& client);
  // What waits is closed.
  void Close();

 private:
  struct Waiting {
    uint64_t number;
    std::unique_ptr<Connection> connection;
  };
  struct Client {
    int under_way = 0;
    std::deque<Waiting> waiting;
  };
  // Null: none may be taken.
  Client* Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int per_client_;
  const size_t waiting_;
  Mutex mutex_;
  CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t put_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Client> clients_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ampd

#endif  // AMPD_SERVER_HTTP_FAIR_QUEUE_H_
