// Ctrl-C as a state one can ask for and wait on, instead of the end of the program.
#ifndef AMPD_CLIENT_INTERRUPT_H_
#define AMPD_CLIENT_INTERRUPT_H_

#include <functional>
#include <thread>

#include "absl/time/time.h"
#include "engine/core/mutex.h"

namespace ampd::client {

// Thread-safe.
class Interrupt {
 public:
  Interrupt() = default;
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  ~Interrupt();

  // From now on SIGINT and SIGTERM raise this interrupt. To be called before other threads start, which inherit that
  // the signals are blocked. A second signal ends the program with exit code 130.
  void CatchSignals();

  // What a signal does.
  void Raise();
  bool raised() const;

  // Sleeps for `duration`; false when the interrupt came before.
  bool SleepFor(absl::Duration duration);

  // While it lives `on_interrupt` is called when the interrupt comes, or at once when it has come. A null interrupt
  // never comes.
  class Scope {
   public:
    Scope(Interrupt* interrupt, std::function<void()> on_interrupt);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Interrupt* interrupt_;
  };

 private:
  void ReadSignals();

  mutable Mutex mutex_;
  CondVar came_;
  bool raised_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> on_interrupt_ ABSL_GUARDED_BY(mutex_);
  // Set by CatchSignals(), before the reader starts.
  int signals_ = -1;  // signalfd
  int stop_ = -1;     // eventfd
  std::thread reader_;
};

}  // namespace ampd::client

#endif  // AMPD_CLIENT_INTERRUPT_H_
