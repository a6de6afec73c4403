#include "client/output/watch_view.h"

#include <sys/ioctl.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "client/output/color.h"
#include "client/output/event_line.h"
#include "client/output/text.h"

namespace ampd::client {
namespace {

absl::Time TimeOf(const v1::JobEvent& event) {
  return absl::FromUnixSeconds(event.time().seconds()) + absl::Nanoseconds(event.time().nanos());
}

std::string LostText(const absl::Status& status) {
  return absl::StrCat("connection lost", status.ok() ? "" : ": ", Clean(status.message()), "; reconnecting");
}

class QuietView : public WatchView {
 public:
  void OnEvent(const v1::JobEvent&) override {}
  void OnLost(const absl::Status&) override {}
  void OnResumed() override {}
  void OnEnd(const v1::StateChange&) override {}
  void OnDetach() override {}
};

class MachineView : public WatchView {
 public:
  MachineView(const WatchViewOptions& options, std::ostream* out) : options_(options), out_(*out) {}

  void OnEvent(const v1::JobEvent& event) override { PrintMessage(event, options_.format, out_); }
  void OnLost(const absl::Status& status) override { *options_.err << LostText(status) << std::endl; }
  void OnResumed() override { *options_.err << "reconnected" << std::endl; }
  void OnEnd(const v1::StateChange&) override {}
  void OnDetach() override {}

 private:
  WatchViewOptions options_;
  std::ostream& out_;
};

class PlainView : public WatchView {
 public:
  PlainView(const WatchViewOptions& options, std::ostream* out) : options_(options), out_(*out) {}

  void OnEvent(const v1::JobEvent& event) override {
    progress_.Observe(event);
    if (event.has_rewound()) held_step_.reset();
    if (event.has_state_change() && event.state_change().to() >= v1::Job::SUCCEEDED) PrintHeldStep();
    if (IsDue(event)) {
      out_ << EventLine(event, progress_.idle()) << std::endl;
      if (event.has_step()) held_step_.reset();
    } else if (event.has_step()) {
      held_step_ = event;
    }
  }
  void OnLost(const absl::Status& status) override { *options_.err << LostText(status) << std::endl; }
  void OnResumed() override { *options_.err << "reconnected" << std::endl; }
  void OnEnd(const v1::StateChange& end) override { out_ << ClosingLine(end, progress_.summary()) << std::endl; }
  void OnDetach() override {}

 private:
  // Whether to show it: of step reports the first, the last and one a second.
  bool IsDue(const v1::JobEvent& event) {
    // The closing line says it.
    if (event.has_state_change()) return event.state_change().to() < v1::Job::SUCCEEDED;
    if (!event.has_step()) return true;
    const bool last = event.step().last_step() == event.step().total_steps();
    if (!last && TimeOf(event) - last_step_line_ < absl::Seconds(1)) return false;
    last_step_line_ = TimeOf(event);
    return true;
  }

  // That a job ends ahead of its length is known when it does.
  void PrintHeldStep() {
    if (held_step_) out_ << EventLine(*held_step_, progress_.idle()) << std::endl;
    held_step_.reset();
  }

  WatchViewOptions options_;
  std::ostream& out_;
  Progress progress_;
  absl::Time last_step_line_ = absl::InfinitePast();
  // The newest step report, where it was not shown.
  std::optional<v1::JobEvent> held_step_;
};

class TerminalView : public WatchView {
 public:
  TerminalView(const WatchViewOptions& options, std::ostream* out) : options_(options), out_(*out) {}

  void OnEvent(const v1::JobEvent& event) override {
    progress_.Observe(event);
    const bool ended = event.has_state_change() && event.state_change().to() >= v1::Job::SUCCEEDED;
    if (!event.has_step() && !ended) Scroll(Paint(options_.color ? ColorOf(event) : Color::kNone, EventLine(event)));
    // A replay of thousands of events need not be drawn one by one; the first current one is.
    const bool replayed = absl::Now() - TimeOf(event) > absl::Seconds(2);
    if (!replayed || absl::Now() - drawn_ > absl::Milliseconds(50)) Draw();
  }
  void OnLost(const absl::Status& status) override {
    Scroll(LostText(status));
    Draw();
  }
  void OnResumed() override {
    Scroll("reconnected");
    Draw();
  }
  void OnEnd(const v1::StateChange& end) override {
    const Color color = options_.color ? ColorOf(end.to()) : Color::kNone;
    out_ << kClearLine << Paint(color, ClosingLine(end, progress_.summary())) << std::endl;
  }
  void OnDetach() override { out_ << kClearLine << progress_.Line(options_.columns()) << std::endl; }

 private:
  static constexpr char kClearLine[] = "\r\x1b[K";

  void Scroll(const std::string& line) { out_ << kClearLine << line << "\n"; }

  void Draw() {
    // One column is left free: a full line would wrap on some terminals.
    out_ << kClearLine << progress_.Line(options_.columns() - 1) << std::flush;
    drawn_ = absl::Now();
  }

  WatchViewOptions options_;
  std::ostream& out_;
  Progress progress_;
  absl::Time drawn_ = absl::InfinitePast();
};

}  // namespace

std::unique_ptr<WatchView> MakeWatchView(const WatchViewOptions& options, std::ostream* out) {
  if (options.quiet) return std::make_unique<QuietView>();
  if (options.format != Format::kTable) return std::make_unique<MachineView>(options, out);
  if (options.terminal) return std::make_unique<TerminalView>(options, out);
  return std::make_unique<PlainView>(options, out);
}

int TerminalColumns(int file) {
  winsize size = {};
  return ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

}  // namespace ampd::client
