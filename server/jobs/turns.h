// Turns for what takes so much memory or time that it is done one after the other.
#ifndef AMPD_SERVER_JOBS_TURNS_H_
#define AMPD_SERVER_JOBS_TURNS_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "engine/core/mutex.h"

namespace ampd {

// Thread-safe. One task has its turn at a time; users take turns, and of one user the tasks in the order of the calls.
class Turns {
 public:
  // Held for as long as the task is at it; its end begins the next one.
  using Turn = std::shared_ptr<const void>;
  using Task = std::function<void(Turn turn)>;

  Turns() : state_(std::make_shared<State>()) {}
  // A turn may outlive this.
  ~Turns() { Close(); }
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  // Runs `task` at once where none has its turn, otherwise on the thread that ends the turn before it. It must not
  // block: it hands its turn on to whoever does the work.
  void Take(const std::string& user, Task task);
  // What waits, or comes from now on, is destroyed without a turn.
  void Close();

 private:
  struct State {
    Mutex mutex;
    bool taken ABSL_GUARDED_BY(mutex) = false;
    bool closed ABSL_GUARDED_BY(mutex) = false;
    // Only users of whom some wait.
    std::map<std::string, std::deque<Task>> waiting ABSL_GUARDED_BY(mutex);
    // Who had the last turn.
    std::string last ABSL_GUARDED_BY(mutex);
  };
  static void Run(const std::shared_ptr<State>& state, const Task& task);
  static void End(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_JOBS_TURNS_H_
