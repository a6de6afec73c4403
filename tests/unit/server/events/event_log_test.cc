#include "server/events/event_log.h"

#include <gmock/gmock.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/unit/server/store/store_test_util.h"

namespace ampd {
namespace {

class EventLogTest : public ::testing::Test {
 protected:
  EventLogTest() {
    Store::Options options;
    options.state_dir = dir_.path();
    store_ = *Store::Open(std::move(options));
    Open(16 << 20);
  }

  void Open(size_t cache_bytes) {
    log_.reset();
    EventLog::Options options;
    options.cache_bytes = cache_bytes;
    log_ = std::make_unique<EventLog>(store_.get(), options);
  }

  absl::Status Append(JobWrite write) {
    std::promise<absl::Status> done;
    log_->Append(std::move(write), [&](const absl::Status& status) { done.set_value(status); });
    return done.get_future().get();
  }

  TempDir dir_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<EventLog> log_;
};

TEST_F(EventLogTest, ReadsFromMemoryAndFromTheStoreAlike) {
  ASSERT_TRUE(Append(CreateWrite(1)).ok());
  for (int sequence = 2; sequence <= 20; ++sequence) ASSERT_TRUE(Append(EventWrite(1, sequence)).ok());
  for (const size_t cache_bytes : {size_t{16} << 20, size_t{0}}) {
    if (cache_bytes == 0) Open(0);
    for (uint64_t after = 0; after <= 20; ++after) {
      const auto page = log_->Read(TestId(1), after, 7);
      ASSERT_TRUE(page.ok()) << page.status();
      EXPECT_EQ(page->last_sequence, 20u);
      ASSERT_EQ(page->events.size(), std::min<uint64_t>(7, 20 - after));
      for (size_t i = 0; i < page->events.size(); ++i) EXPECT_EQ(page->events[i].sequence(), after + 1 + i);
    }
    EXPECT_EQ(log_->Read(TestId(1), 21, 7).status().code(), absl::StatusCode::kOutOfRange);
    EXPECT_EQ(log_->Read(TestId(2), 0, 7).status().code(), absl::StatusCode::kNotFound);
  }
}

TEST_F(EventLogTest, AFailedAppendIsNotReadable) {
  ASSERT_TRUE(Append(CreateWrite(1)).ok());
  EXPECT_FALSE(Append(EventWrite(1, 5)).ok());
  EXPECT_EQ(log_->Read(TestId(1), 0, 100)->last_sequence, 1u);
}

TEST_F(EventLogTest, TheListenerSeesDurableWritesInOrder) {
  std::vector<uint64_t> heard;
  log_->SetListener([&](const JobWrite& write) {
    for (const auto& event : write.events) heard.push_back(event.sequence());
  });
  log_->Append(CreateWrite(1), nullptr);
  log_->Append(EventWrite(1, 9), nullptr);
  for (int sequence = 2; sequence <= 50; ++sequence) log_->Append(EventWrite(1, sequence), nullptr);
  store_->Flush();
  log_->Flush();
  ASSERT_EQ(heard.size(), 50u);
  for (size_t i = 0; i < heard.size(); ++i) EXPECT_EQ(heard[i], i + 1);
}

TEST_F(EventLogTest, NoWakeUpAfterTheSubscriptionIsGone) {
  std::atomic<int> woken{0};
  ASSERT_TRUE(Append(CreateWrite(1)).ok());
  log_->Flush();
  auto subscription = log_->Subscribe(TestId(1), [&] { ++woken; });
  auto other_job = log_->Subscribe(TestId(2), [&] { woken += 100; });
  ASSERT_TRUE(Append(EventWrite(1, 2)).ok());
  log_->Flush();
  EXPECT_EQ(woken, 1);
  subscription.reset();
  ASSERT_TRUE(Append(EventWrite(1, 3)).ok());
  log_->Flush();
  EXPECT_EQ(woken, 1);
}

TEST_F(EventLogTest, AWatcherThatBlocksDoesNotDelayWriters) {
  std::promise<void> release;
  std::promise<void> entered;
  std::atomic<bool> first{true};
  auto blocked = log_->Subscribe(TestId(1), [&] {
    if (!first.exchange(false)) return;
    entered.set_value();
    release.get_future().wait();
  });
  ASSERT_TRUE(Append(CreateWrite(1)).ok());
  entered.get_future().wait();
  for (int sequence = 2; sequence <= 100; ++sequence) ASSERT_TRUE(Append(EventWrite(1, sequence)).ok());
  EXPECT_EQ(log_->Read(TestId(1), 0, 1000)->events.size(), 100u);
  release.set_value();
  log_->Flush();
}

// Pulls from the log whenever it is woken, as the service's streams do.
struct PullingWatcher {
  PullingWatcher(EventLog* log, std::atomic<int>* complete, uint64_t until)
      : log(log), complete(complete), until(until) {}
  void Pull() {
    while (true) {
      const auto page = log->Read(TestId(1), seen, 16);
      if (!page.ok() || page->events.empty()) return;
      for (const auto& event : page->events) {
        gap = gap || event.first_sequence() != seen + 1;
        seen = event.sequence();
      }
      if (seen == until) ++*complete;
    }
  }
  EventLog* log;
  std::atomic<int>* complete;
  uint64_t until;
  uint64_t seen = 0;
  bool gap = false;
  std::unique_ptr<EventLog::Subscription> subscription;
};

TEST_F(EventLogTest, AThousandWatchersSeeEveryEventOnce) {
  constexpr int kWatchers = 1000;
  constexpr uint64_t kEvents = 200;
  ASSERT_TRUE(Append(CreateWrite(1)).ok());
  log_->Flush();
  std::atomic<int> complete{0};
  std::vector<std::unique_ptr<PullingWatcher>> watchers;
  for (int i = 0; i < kWatchers; ++i) {
    auto& watcher = watchers.emplace_back(std::make_unique<PullingWatcher>(log_.get(), &complete, kEvents));
    watcher->subscription = log_->Subscribe(TestId(1), [w = watcher.get()] { w->Pull(); });
  }
  for (uint64_t sequence = 2; sequence <= kEvents; ++sequence) log_->Append(EventWrite(1, sequence), nullptr);
  store_->Flush();
  log_->Flush();
  EXPECT_EQ(complete, kWatchers);
  for (const auto& watcher : watchers) EXPECT_FALSE(watcher->gap);
}

TEST_F(EventLogTest, SubscribingAndLeavingWhileEventsFlow) {
  ASSERT_TRUE(Append(CreateWrite(1)).ok());
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!stop) {
        int calls = 0;
        auto subscription = log_->Subscribe(TestId(1), [&calls] { ++calls; });
        EXPECT_TRUE(log_->Read(TestId(1), 0, 4).ok());
        subscription.reset();
      }
    });
  }
  for (uint64_t sequence = 2; sequence <= 200; ++sequence) EXPECT_TRUE(Append(EventWrite(1, sequence)).ok());
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace ampd
