// The whole terminal for a while.
#ifndef AMPD_CLIENT_TOP_FULL_SCREEN_H_
#define AMPD_CLIENT_TOP_FULL_SCREEN_H_

#include <termios.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ampd::client {

// Takes the terminal of standard input and output: the other screen, no cursor, keys at once and without an echo. Gives
// it back as it was when it is destroyed, and also when the program crashes, whatever takes it down but SIGKILL. Only
// one at a time; used by one thread, made before others start.
class FullScreen {
 public:
  enum class Event { kNone, kKey, kResized, kEnd };

  // Keeps the signals that Wait() takes from ending the program. To be called before other threads start.
  static void BlockSignals();

  // After BlockSignals(). FAILED_PRECONDITION where standard input or output is no terminal.
  static absl::StatusOr<std::unique_ptr<FullScreen>> Take();
  ~FullScreen();
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;

  // As large as it is now.
  int columns() const { return columns_; }
  int rows() const { return rows_; }

  // Shows the lines from the top; what was there before is gone.
  void Draw(const std::vector<std::string>& lines);

  // Waits until a key comes, the size changes, `file` is readable, or the program is to end (Ctrl-C, SIGTERM, SIGHUP).
  // Suspends the program when asked to, with the terminal as it was. What the terminal
  // sends, of one key or of several, is appended to `sent` (client/top/keys.h).
  Event Wait(int file, std::string* sent);

 private:
  FullScreen() = default;
  void Enter();
  void Leave();
  void Suspend();
  void Measure();
  // What the signal asks for.
  Event Take(int signal);

  termios before_ = {};
  int signals_ = -1;  // signalfd
  int columns_ = 80;
  int rows_ = 24;
};

}  // namespace ampd::client

#endif  // AMPD_CLIENT_TOP_FULL_SCREEN_H_
