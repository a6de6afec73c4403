// A thread for what takes long and can be done in steps: users take turns, so that nobody waits for all of another's.
#ifndef AMPD_SERVER_SERVICE_STEP_POOL_H_
#define AMPD_SERVER_SERVICE_STEP_POOL_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "engine/core/mutex.h"

namespace ampd {

// Thread safe.
class StepPool {
 public:
  struct Options {
    // Tasks of one user that are not over.
    size_t per_user = 16;
    // Of all users.
    size_t all = 256;
    // Begun and not over, each of another user; each may have made much by then. The others wait.
    size_t begun = 4;
  };
  // Does a step; whether there are more.
  using Task = std::function<bool()>;

  explicit StepPool(const Options& options) : options_(options), thread_([this] { Run(); }) {}
  // Runs what is there to its end.
  ~StepPool();
  StepPool(const StepPool&) = delete;
  StepPool& operator=(const StepPool&) = delete;

  // `task` is called on the pool's thread until it has no more steps: one step a turn, and of one user's tasks one
  // after the other. False, and nothing happens, where there are too many.
  bool Post(const std::string& user, Task task);

 private:
  struct Line {
    std::deque<Task> tasks;
    // The first of them.
    bool begun = false;
  };
  void Run();
  // Whose turn it is; null: nobody's.
  Line* Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  Mutex mutex_;
  CondVar wake_;
  // Of users who have tasks.
  std::map<std::string, Line> lines_ ABSL_GUARDED_BY(mutex_);
  size_t tasks_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  // Who had the last turn.
  std::string last_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Last: it uses the rest.
  std::thread thread_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_STEP_POOL_H_
