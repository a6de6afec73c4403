#include "engine/runtime/thread_collective.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <thread>

#include "absl/strings/str_cat.h"
#include "engine/core/mutex.h"

namespace ampd::runtime {
namespace {

// Elements that stay in the nearest cache while every replica's are added and the sum is handed out.
constexpr int64_t kBlock = 2048;

// What a replica asked for.
struct Request {
  float* arena = nullptr;
  absl::Span<const ArenaSlot> ranges;
};

bool SameRanges(absl::Span<const ArenaSlot> a, absl::Span<const ArenaSlot> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const ArenaSlot& x, const ArenaSlot& y) { return x.offset == y.offset && x.size == y.size; });
}

void SumBlock(const std::vector<Request>& requests, int64_t offset, int64_t size) {
  float* __restrict sum = requests[0].arena + offset;
  for (size_t r = 1; r < requests.size(); ++r) {
    const float* __restrict term = requests[r].arena + offset;
    for (int64_t i = 0; i < size; ++i) sum[i] += term[i];
  }
  for (size_t r = 1; r < requests.size(); ++r) {
    std::memcpy(requests[r].arena + offset, sum, static_cast<size_t>(size) * sizeof(float));
  }
}

// The thread that adds, and what it is to add.
class Adder {
 public:
  explicit Adder(int size) : group_(std::make_shared<ReplicaGroup>(size)), pending_(group_->size()), started_(size) {
    group_->OnAbort([this] {
      const MutexLock lock(&mutex_);
      aborted_ = true;
      changed_.NotifyAll();
    });
    thread_ = std::thread([this] { Run(); });
  }
  ~Adder() {
    group_->OnAbort(nullptr);
    {
      const MutexLock lock(&mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }

  const std::shared_ptr<ReplicaGroup>& group() const { return group_; }

  absl::Status Start(int rank, const Request& request) {
    const MutexLock lock(&mutex_);
    if (aborted_) return group_->status();
    pending_[static_cast<size_t>(rank)].push_back(request);
    ++started_[static_cast<size_t>(rank)];
    changed_.NotifyAll();
    return absl::OkStatus();
  }

  absl::Status Finish(int rank) {
    const MutexLock lock(&mutex_);
    // The sum under way writes to every replica's arena, whatever happens besides.
    while (!IsDone(rank) && !(aborted_ && !adding_)) changed_.Wait(&mutex_);
    return aborted_ ? group_->status() : absl::OkStatus();
  }

  bool Done(int rank) {
    const MutexLock lock(&mutex_);
    return IsDone(rank);
  }

 private:
  bool IsDone(int rank) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return done_ == started_[static_cast<size_t>(rank)];
  }

  bool HasRequest() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::none_of(pending_.begin(), pending_.end(), [](const auto& requests) { return requests.empty(); });
  }

  void Run() {
    MutexLock lock(&mutex_);
    while (true) {
      while (!stopping_ && !(HasRequest() && !aborted_)) changed_.Wait(&mutex_);
      if (stopping_) return;
      requests_.clear();
      for (std::deque<Request>& requests : pending_) {
        requests_.push_back(requests.front());
        requests.pop_front();
      }
      adding_ = true;
      lock.Unlock();
      const absl::Status added = Add();
      // Takes mutex_ itself.
      if (!added.ok()) group_->Abort(added);
      lock.Lock();
      adding_ = false;
      ++done_;
      changed_.NotifyAll();
    }
  }

  absl::Status Add() const {
    const absl::Span<const ArenaSlot> ranges = requests_[0].ranges;
    for (size_t r = 1; r < requests_.size(); ++r) {
      if (SameRanges(requests_[r].ranges, ranges)) continue;
      return absl::InternalError(absl::StrCat("[collective] replica ", r, " adds up other gradients than replica 0"));
    }
    for (const ArenaSlot& range : ranges) {
      for (int64_t i = 0; i < range.size; i += kBlock) {
        SumBlock(requests_, range.offset + i, std::min(kBlock, range.size - i));
      }
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<ReplicaGroup> group_;
  Mutex mutex_;
  CondVar changed_;
  // By rank.
  std::vector<std::deque<Request>> pending_ ABSL_GUARDED_BY(mutex_);
  std::vector<int64_t> started_ ABSL_GUARDED_BY(mutex_);
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  bool adding_ ABSL_GUARDED_BY(mutex_) = false;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // The thread's own.
  std::vector<Request> requests_;
  std::thread thread_;
};

class ThreadCollective : public Collective {
 public:
  ThreadCollective(int rank, std::shared_ptr<Adder> adder) : Collective(rank, adder->group()), adder_(adder) {}

  absl::Status AllReduceSum(float* arena, absl::Span<const ArenaSlot> ranges) override {
    return adder_->Start(rank(), {arena, ranges});
  }
  absl::Status Finish() override { return adder_->Finish(rank()); }
  bool Done() override { return adder_->Done(rank()); }

 private:
  const std::shared_ptr<Adder> adder_;
};

}  // namespace

std::vector<std::unique_ptr<Collective>> MakeThreadCollectives(int size) {
  const auto adder = std::make_shared<Adder>(size);
  std::vector<std::unique_ptr<Collective>> collectives;
  for (int rank = 0; rank < size; ++rank) collectives.push_back(std::make_unique<ThreadCollective>(rank, adder));
  return collectives;
}

}  // namespace ampd::runtime
