#include "server/web/fleet_feed.h"

#include <utility>

namespace ampd {

std::unique_ptr<FleetFeed::Subscription> FleetFeed::Subscribe(Owner owner) {
  std::unique_ptr<Subscription> subscription(new Subscription(this, std::move(owner)));
  const MutexLock lock(&mutex_);
  subscriptions_.insert(subscription.get());
  return subscription;
}

FleetFeed::Subscription::~Subscription() {
  const MutexLock lock(&feed_->mutex_);
  feed_->subscriptions_.erase(this);
}

void FleetFeed::OnWrite(const JobWrite& write) {
  const MutexLock lock(&mutex_);
  for (Subscription* subscription : subscriptions_) {
    if (subscription->owner_ && *subscription->owner_ != write.record.job.user()) continue;
    subscription->jobs_.insert(write.record.job.id());
    if (subscription->jobs_.size() <= kMaxJobs) continue;
    subscription->jobs_.clear();
    subscription->missed_ = true;
  }
}

FleetFeed::Changes FleetFeed::Subscription::TakeAfter(absl::Duration pause) {
  const CondVar::Deadline deadline = std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(pause);
  const MutexLock lock(&feed_->mutex_);
  while (!feed_->is_stopped_ && feed_->stopped_.WaitUntil(&feed_->mutex_, deadline)) {
  }
  Changes changes;
  changes.jobs = std::exchange(jobs_, {});
  changes.missed = std::exchange(missed_, false);
  changes.stopped = feed_->is_stopped_;
  return changes;
}

void FleetFeed::Stop() {
  {
    const MutexLock lock(&mutex_);
    is_stopped_ = true;
  }
  stopped_.NotifyAll();
}

}  // namespace ampd
