#include "client/interrupt.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <utility>

#include "client/exit_code.h"

namespace ampd::client {

Interrupt::~Interrupt() {
  if (!reader_.joinable()) return;
  const uint64_t one = 1;
  // An eventfd below its limit takes a write at once.
  if (write(stop_, &one, sizeof(one)) == sizeof(one)) reader_.join();
  close(signals_);
  close(stop_);
}

void Interrupt::CatchSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signals_ = signalfd(-1, &set, SFD_CLOEXEC);
  stop_ = eventfd(0, EFD_CLOEXEC);
  reader_ = std::thread([this] { ReadSignals(); });
}

void Interrupt::ReadSignals() {
  pollfd files[] = {{signals_, POLLIN, 0}, {stop_, POLLIN, 0}};
  while (true) {
    if (poll(files, 2, -1) < 0) continue;
    if (files[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signals_, &info, sizeof(info)) != sizeof(info)) continue;
    // Whoever insists is let go at once, whatever a call is waiting for.
    if (raised()) _exit(kExitInterrupted);
    Raise();
  }
}

void Interrupt::Raise() {
  const MutexLock lock(&mutex_);
  raised_ = true;
  if (on_interrupt_) on_interrupt_();
  came_.NotifyAll();
}

bool Interrupt::raised() const {
  const MutexLock lock(&mutex_);
  return raised_;
}

bool Interrupt::SleepFor(absl::Duration duration) {
  MutexLock lock(&mutex_);
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(duration);
  while (!raised_ && came_.WaitUntil(&mutex_, deadline)) {
  }
  return !raised_;
}

Interrupt::Scope::Scope(Interrupt* interrupt, std::function<void()> on_interrupt) : interrupt_(interrupt) {
  if (interrupt_ == nullptr) return;
  const MutexLock lock(&interrupt_->mutex_);
  interrupt_->on_interrupt_ = std::move(on_interrupt);
  if (interrupt_->raised_) interrupt_->on_interrupt_();
}

Interrupt::Scope::~Scope() {
  if (interrupt_ == nullptr) return;
  const MutexLock lock(&interrupt_->mutex_);
  interrupt_->on_interrupt_ = nullptr;
}

}  // namespace ampd::client
