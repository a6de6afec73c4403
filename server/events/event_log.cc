#include "server/events/event_log.h"

#include <atomic>
#include <deque>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/core/status.h"
#include "server/events/tail_cache.h"

namespace ampd {
namespace {

// A watcher's callback; `mutex` is held while it runs, so that the end of the subscription can wait for it.
struct Watcher {
  explicit Watcher(std::function<void()> wake) : wake(std::move(wake)) {}

  Mutex mutex;
  std::function<void()> wake ABSL_GUARDED_BY(mutex);
};

}  // namespace

class EventLog::Impl {
 public:
  // Groups of writes; what became durable together is together here.
  using Durable = std::deque<std::shared_ptr<const std::vector<JobWrite>>>;

  Impl(Store* store, Options options) : store(store), cache(options.cache_bytes), notifier([this] { Notify(); }) {}

  ~Impl() { Stop(); }

  void Stop() {
    {
      const MutexLock lock(&mutex);
      stopping = true;
    }
    changed.NotifyAll();
    if (notifier.joinable()) notifier.join();
  }

  // On the store's thread, once `writes` are durable. `done` runs under the lock, so that whoever reads the new events
  // comes after it.
  void Publish(std::shared_ptr<const std::vector<JobWrite>> writes, const Store::Done& done) {
    const MutexLock lock(&mutex);
    for (const JobWrite& write : *writes) {
      for (const v1::JobEvent& event : write.events) cache.Add(write.record.job.id(), event);
    }
    if (done) done(absl::OkStatus());
    pending.push_back(std::move(writes));
    changed.NotifyAll();
  }

  void Notify() {
    MutexLock lock(&mutex);
    while (true) {
      while (!stopping && pending.empty()) changed.Wait(&mutex);
      if (pending.empty()) return;
      const Durable writes = std::exchange(pending, {});
      std::vector<std::shared_ptr<Watcher>> woken = WatchersOf(writes);
      const std::function<void(const JobWrite&)> told = listen;
      busy = true;
      lock.Unlock();
      if (told) {
        for (const auto& group : writes) {
          for (const JobWrite& write : *group) told(write);
        }
      }
      for (const auto& watcher : woken) {
        const MutexLock watching(&watcher->mutex);
        if (watcher->wake) watcher->wake();
      }
      woken.clear();
      lock.Lock();
      busy = false;
      idle.NotifyAll();
    }
  }

  std::vector<std::shared_ptr<Watcher>> WatchersOf(const Durable& writes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unordered_set<std::string> jobs;
    for (const auto& group : writes) {
      for (const JobWrite& write : *group) {
        if (!write.events.empty()) jobs.insert(write.record.job.id());
      }
    }
    std::vector<std::shared_ptr<Watcher>> result;
    for (const std::string& job : jobs) {
      const auto [begin, end] = watchers.equal_range(job);
      for (auto it = begin; it != end; ++it) result.push_back(it->second);
    }
    return result;
  }

  void Forget(const std::string& job_id, const std::shared_ptr<Watcher>& watcher) {
    const MutexLock lock(&mutex);
    const auto [begin, end] = watchers.equal_range(job_id);
    for (auto it = begin; it != end; ++it) {
      if (it->second != watcher) continue;
      watchers.erase(it);
      return;
    }
  }

  Store* const store;
  Mutex mutex;
  CondVar changed;
  CondVar idle;
  TailCache cache ABSL_GUARDED_BY(mutex);
  // Durable writes whose listener and watchers have not been told.
  Durable pending ABSL_GUARDED_BY(mutex);
  bool busy ABSL_GUARDED_BY(mutex) = false;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  std::unordered_multimap<std::string, std::shared_ptr<Watcher>> watchers ABSL_GUARDED_BY(mutex);
  std::atomic<uint64_t> store_reads{0};
  std::function<void(const JobWrite&)> listen ABSL_GUARDED_BY(mutex);
  std::thread notifier;
};

EventLog::EventLog(Store* store, Options options) : impl_(std::make_shared<Impl>(store, options)) {}

EventLog::~EventLog() {
  // Appends still queued in the store refer to the log.
  impl_->store->Flush();
  impl_->Stop();
}

void EventLog::Append(JobWrite write, Store::Done done) {
  std::vector<JobWrite> writes;
  writes.push_back(std::move(write));
  AppendAll(std::move(writes), std::move(done));
}

void EventLog::AppendAll(std::vector<JobWrite> writes, Store::Done done) {
  // The events go to the store and, unread from there, to the readers.
  const auto shared = std::make_shared<const std::vector<JobWrite>>(std::move(writes));
  impl_->store->WriteAll(shared, [impl = impl_.get(), shared, done = std::move(done)](const absl::Status& status) {
    if (status.ok()) {
      impl->Publish(shared, done);
    } else if (done) {
      done(status);
    }
  });
}

absl::StatusOr<EventPage> EventLog::Read(const std::string& job_id, uint64_t after_sequence, int limit,
                                         size_t max_bytes) {
  {
    const MutexLock lock(&impl_->mutex);
    if (auto page = impl_->cache.Read(job_id, after_sequence, limit, max_bytes)) return *std::move(page);
  }
  ++impl_->store_reads;
  AMPD_ASSIGN_OR_RETURN(EventPage page, impl_->store->Await([&](const Database& database) {
    return database.ReadEvents(job_id, after_sequence, limit, max_bytes);
  }));
  if (after_sequence > page.last_sequence) {
    return absl::OutOfRangeError(absl::StrCat("job ", job_id, ": event ", after_sequence,
                                              " is beyond the newest, which is ", page.last_sequence));
  }
  return page;
}

namespace {

class LiveSubscription : public EventLog::Subscription {
 public:
  LiveSubscription(std::shared_ptr<Watcher> watcher, std::function<void()> forget)
      : watcher_(std::move(watcher)), forget_(std::move(forget)) {}
  ~LiveSubscription() override {
    forget_();
    const MutexLock lock(&watcher_->mutex);
    watcher_->wake = nullptr;
  }

 private:
  std::shared_ptr<Watcher> watcher_;
  std::function<void()> forget_;
};

}  // namespace

std::unique_ptr<EventLog::Subscription> EventLog::Subscribe(const std::string& job_id, std::function<void()> wake) {
  auto watcher = std::make_shared<Watcher>(std::move(wake));
  {
    const MutexLock lock(&impl_->mutex);
    impl_->watchers.emplace(job_id, watcher);
  }
  // Holds the log's state, so that a subscription that outlives the log is harmless.
  return std::make_unique<LiveSubscription>(watcher,
                                            [impl = impl_, job_id, watcher] { impl->Forget(job_id, watcher); });
}

void EventLog::SetListener(std::function<void(const JobWrite&)> listen) {
  const MutexLock lock(&impl_->mutex);
  impl_->listen = std::move(listen);
}

int64_t EventLog::watchers() const {
  const MutexLock lock(&impl_->mutex);
  return static_cast<int64_t>(impl_->watchers.size());
}

uint64_t EventLog::store_reads() const { return impl_->store_reads.load(); }

void EventLog::Flush() {
  const MutexLock lock(&impl_->mutex);
  while (!impl_->pending.empty() || impl_->busy) impl_->idle.Wait(&impl_->mutex);
}

}  // namespace ampd
