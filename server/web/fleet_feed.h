// Which jobs have changed, for streams that show all of them.
#ifndef AMPD_SERVER_WEB_FLEET_FEED_H_
#define AMPD_SERVER_WEB_FLEET_FEED_H_

#include <memory>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "engine/core/mutex.h"
#include "server/store/records.h"

namespace ampd {

// Thread-safe. Of a subscription at most kMaxJobs are kept.
class FleetFeed {
 public:
  static constexpr size_t kMaxJobs = 100;

  struct Changes {
    // Ids.
    std::set<std::string> jobs;
    // More changed than are kept: `jobs` lacks some.
    bool missed = false;
    // There is no more to come.
    bool stopped = false;
  };

  // Ends with it; before the feed.
  class Subscription {
   public:
    ~Subscription();
    Subscription(const Subscription&) = delete;
    Subscription& operator=(const Subscription&) = delete;

    // What changed since the call before, once `pause` is over or the feed was stopped.
    Changes TakeAfter(absl::Duration pause);

   private:
    friend class FleetFeed;
    Subscription(FleetFeed* feed, Owner owner) : feed_(feed), owner_(std::move(owner)) {}

    FleetFeed* const feed_;
    const Owner owner_;
    // Guarded by the feed's mutex.
    std::set<std::string> jobs_;
    bool missed_ = false;
  };

  FleetFeed() = default;
  FleetFeed(const FleetFeed&) = delete;
  FleetFeed& operator=(const FleetFeed&) = delete;

  // Of the jobs of `owner`.
  std::unique_ptr<Subscription> Subscribe(Owner owner);

  // A durable change, in order: EventLog's listener. Costs nothing without subscriptions.
  void OnWrite(const JobWrite& write);

  // Ends all waits, for good.
  void Stop();

 private:
  Mutex mutex_;
  CondVar stopped_;
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<Subscription*> subscriptions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ampd

#endif  // AMPD_SERVER_WEB_FLEET_FEED_H_
