#include "client/top/full_screen.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>

#include "absl/strings/str_cat.h"

namespace ampd::client {
namespace {

// The other screen, without a cursor and without lines that wrap; and back.
constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l\x1b[?7l";
constexpr char kLeave[] = "\x1b[?7h\x1b[?25h\x1b[?1049l";

constexpr int kAwaited[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH};
constexpr int kFatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

// Of the one that lives, for the handler of crashes.
volatile sig_atomic_t g_taken = 0;
termios g_before;

void WriteAll(const char* text, size_t size) {
  while (size > 0) {
    const ssize_t count = write(STDOUT_FILENO, text, size);
    if (count < 0 && errno == EINTR) continue;
    // The terminal is gone.
    if (count <= 0) return;
    text += count;
    size -= static_cast<size_t>(count);
  }
}

// Calls only what a handler may.
void OnCrash(int signal) {
  if (g_taken != 0) {
    WriteAll(kLeave, sizeof(kLeave) - 1);
    tcsetattr(STDIN_FILENO, TCSANOW, &g_before);
  }
  // The handler was for one time: this ends the program as the signal does.
  raise(signal);
}

sigset_t Awaited() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kAwaited) sigaddset(&set, signal);
  return set;
}

}  // namespace

void FullScreen::BlockSignals() {
  const sigset_t set = Awaited();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

absl::StatusOr<std::unique_ptr<FullScreen>> FullScreen::Take() {
  std::unique_ptr<FullScreen> screen(new FullScreen);
  if (isatty(STDOUT_FILENO) != 1 || tcgetattr(STDIN_FILENO, &screen->before_) != 0) {
    return absl::FailedPreconditionError("standard input and output must be a terminal");
  }
  const sigset_t set = Awaited();
  screen->signals_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  g_before = screen->before_;
  struct sigaction crash = {};
  crash.sa_handler = OnCrash;
  crash.sa_flags = static_cast<int>(SA_RESETHAND) | SA_NODEFER;
  for (const int signal : kFatal) sigaction(signal, &crash, nullptr);
  screen->Enter();
  return screen;
}

FullScreen::~FullScreen() {
  if (signals_ < 0) return;
  Leave();
  close(signals_);
}

void FullScreen::Enter() {
  termios raw = before_;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  raw.c_cc[VMIN] = 0;
  raw.c_cc[VTIME] = 0;
  g_taken = 1;
  tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  WriteAll(kEnter, sizeof(kEnter) - 1);
  Measure();
}

void FullScreen::Leave() {
  WriteAll(kLeave, sizeof(kLeave) - 1);
  tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  g_taken = 0;
}

void FullScreen::Suspend() {
  Leave();
  // Returns when the program is continued.
  raise(SIGSTOP);
  Enter();
}

void FullScreen::Measure() {
  winsize size = {};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
  columns_ = known ? size.ws_col : 80;
  rows_ = known ? size.ws_row : 24;
}

void FullScreen::Draw(const std::vector<std::string>& lines) {
  // A line is cleared before it is written: behind its last column the cursor would still stand on it.
  std::string text = static_cast<int>(lines.size()) < rows_ ? "\x1b[2J\x1b[H" : "\x1b[H";
  for (size_t i = 0; i < lines.size(); ++i) absl::StrAppend(&text, i == 0 ? "\x1b[K" : "\r\n\x1b[K", lines[i]);
  // All at once, so that nothing flickers.
  WriteAll(text.data(), text.size());
}

FullScreen::Event FullScreen::Take(int signal) {
  switch (signal) {
    case SIGWINCH:
      Measure();
      return Event::kResized;
    case SIGTSTP:
      Suspend();
      return Event::kResized;
    // Who stops a program by SIGSTOP may have changed the terminal.
    case SIGCONT:
      Enter();
      return Event::kResized;
    default:
      return Event::kEnd;
  }
}

FullScreen::Event FullScreen::Wait(int file, std::string* sent) {
  pollfd files[] = {{STDIN_FILENO, POLLIN, 0}, {signals_, POLLIN, 0}, {file, POLLIN, 0}};
  if (poll(files, std::size(files), -1) < 0) return Event::kNone;
  if (files[1].revents != 0) {
    signalfd_siginfo info;
    if (read(signals_, &info, sizeof(info)) == sizeof(info)) return Take(static_cast<int>(info.ssi_signo));
  }
  if (files[0].revents != 0) {
    char buffer[64];
    const ssize_t count = read(STDIN_FILENO, buffer, sizeof(buffer));
    // The terminal is gone.
    if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) return Event::kEnd;
    if (count > 0) sent->append(buffer, static_cast<size_t>(count));
    return count > 0 ? Event::kKey : Event::kNone;
  }
  return Event::kNone;
}

}  // namespace ampd::client
