// Asks a server for what `top` shows, again and again, beside the one who draws.
#ifndef AMPD_CLIENT_TOP_FEED_H_
#define AMPD_CLIENT_TOP_FEED_H_

#include <memory>
#include <thread>

#include "absl/time/time.h"
#include "client/connection.h"
#include "client/top/state.h"
#include "engine/core/mutex.h"

namespace ampd::client {

// Asks once, and brings `state` up to date; what went wrong is its `lost`. Of histories each running job has its newest
// part, up to `most_histories` jobs.
void AskServer(Connection* connection, TopState* state);

// Thread-safe.
class TopFeed {
 public:
  // Asks at once and then every `interval`. `connection` outlives it.
  TopFeed(Connection* connection, absl::Duration interval);
  // Waits for the answer that is under way, at most as long as a call may take.
  ~TopFeed();

  // Asks now.
  void Hurry();
  // What was found last; null before the first answer.
  std::shared_ptr<const TopState> state() const;
  // Readable when there is something new; reading makes it unreadable.
  int news() const { return news_; }

 private:
  void Run();

  Connection* const connection_;
  const absl::Duration interval_;
  int news_ = -1;  // eventfd; set before the thread starts.
  mutable Mutex mutex_;
  CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool hurry_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const TopState> state_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // Of constructor and destructor alone.
};

}  // namespace ampd::client

#endif  // AMPD_CLIENT_TOP_FEED_H_
