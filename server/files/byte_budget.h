// How many bytes something may take in all.
#ifndef AMPD_SERVER_FILES_BYTE_BUDGET_H_
#define AMPD_SERVER_FILES_BYTE_BUDGET_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/mutex.h"

namespace ampd {

// Thread safe.
class ByteBudget {
 public:
  // `name`: what sets the limit, for those who are told of it. What counts here counts in `of` as well, which may be
  // null.
  explicit ByteBudget(int64_t limit, std::string name = "max_uploads_bytes", std::shared_ptr<ByteBudget> of = nullptr)
      : limit_(limit), name_(std::move(name)), of_(std::move(of)) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  int64_t used() const {
    const MutexLock lock(&mutex_);
    return used_;
  }

  // What is in the way of `bytes` more, as "12 of 15 bytes (max_uploads_bytes)", which are taken; empty: nothing is.
  std::string InTheWayOf(int64_t bytes) const {
    std::string of = of_ == nullptr ? "" : of_->InTheWayOf(bytes);
    if (!of.empty()) return of;
    const MutexLock lock(&mutex_);
    return bytes <= limit_ - used_ ? "" : absl::StrCat(used_, " of ", limit_, " bytes (", name_, ")");
  }

  // False, and nothing is taken, where `bytes` more would be beyond the limit. `bytes` >= 0.
  bool Take(int64_t bytes) {
    if (of_ != nullptr && !of_->Take(bytes)) return false;
    {
      const MutexLock lock(&mutex_);
      if (bytes <= limit_ - used_) {
        used_ += bytes;
        return true;
      }
    }
    if (of_ != nullptr) of_->GiveBack(bytes);
    return false;
  }
  // Of what is there already, limit or not.
  void Count(int64_t bytes) {
    if (of_ != nullptr) of_->Count(bytes);
    const MutexLock lock(&mutex_);
    used_ += bytes;
  }
  void GiveBack(int64_t bytes) { Count(-bytes); }

 private:
  const int64_t limit_;
  const std::string name_;
  const std::shared_ptr<ByteBudget> of_;
  mutable Mutex mutex_;
  int64_t used_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A budget for each user, out of that of all. Thread safe.
class UserBudgets {
 public:
  // `limit` of one user, 0: none but that of `all`. `name` as ByteBudget's.
  UserBudgets(int64_t limit, std::string name, std::shared_ptr<ByteBudget> all)
      : limit_(limit), name_(std::move(name)), all_(std::move(all)) {}

  // Of users who are not told apart, the empty name, that of all.
  std::shared_ptr<ByteBudget> Of(const std::string& user) {
    if (user.empty() || limit_ == 0) return all_;
    const MutexLock lock(&mutex_);
    std::shared_ptr<ByteBudget>& budget = budgets_[user];
    if (budget == nullptr) budget = std::make_shared<ByteBudget>(limit_, name_, all_);
    return budget;
  }

 private:
  const int64_t limit_;
  const std::string name_;
  const std::shared_ptr<ByteBudget> all_;
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<ByteBudget>> budgets_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ampd

#endif  // AMPD_SERVER_FILES_BYTE_BUDGET_H_
