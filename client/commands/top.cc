#include <langinfo.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <clocale>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "client/exit_code.h"
#include "client/top/feed.h"
#include "client/top/full_screen.h"
#include "client/top/keys.h"
#include "client/top/screen.h"

namespace ampd::client {
namespace {

struct TopOptions {
  double interval_seconds = 1;
  bool once = false;
};

// Of a key that moves the selection: by how many jobs; 0 of any other.
int MoveOf(const std::string& key) {
  constexpr int kPage = 10;
  if (key == "j" || key == "\x1b[B" || key == "\x1bOB") return 1;
  if (key == "k" || key == "\x1b[A" || key == "\x1bOA") return -1;
  if (key == "\x1b[6~") return kPage;
  return key == "\x1b[5~" ? -kPage : 0;
}

void MoveSelection(const TopState& state, int by, TopView* view) {
  const std::vector<const v1::Job*> jobs = ShownJobs(state, *view);
  if (jobs.empty()) return;
  const auto at = std::find_if(jobs.begin(), jobs.end(), [&](const auto* job) { return job->id() == view->selected; });
  const int place = at == jobs.end() ? 0 : static_cast<int>(at - jobs.begin());
  view->selected = jobs[static_cast<size_t>(std::clamp(place + by, 0, static_cast<int>(jobs.size()) - 1))]->id();
}

// False: the end.
bool TakeKey(const std::string& key, const TopState* state, TopFeed* feed, TopView* view) {
  if (key == "q" || key == "Q") return false;
  if (key == " ") feed->Hurry();
  if (key == "e") view->ended = !view->ended;
  if (const int move = MoveOf(key); move != 0 && state != nullptr) MoveSelection(*state, move, view);
  return true;
}

// Whether asking again cannot help.
bool IsFinal(const absl::Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) || absl::IsInvalidArgument(status);
}

// Until its user ends it, or the server refuses to be asked.
absl::Status Show(FullScreen* screen, TopFeed* feed, TopView view) {
  std::string sent;
  while (true) {
    const FullScreen::Event event = screen->Wait(feed->news(), &sent);
    if (event == FullScreen::Event::kEnd) return absl::OkStatus();
    uint64_t count;
    const bool news = read(feed->news(), &count, sizeof(count)) == sizeof(count);
    const std::shared_ptr<const TopState> state = feed->state();
    for (const std::string& key : TakeKeys(&sent)) {
      if (!TakeKey(key, state.get(), feed, &view)) return absl::OkStatus();
    }
    if (state == nullptr || (!news && event == FullScreen::Event::kNone)) continue;
    if (IsFinal(state->lost)) return state->lost;
    view.columns = screen->columns();
    view.rows = screen->rows();
    screen->Draw(TopScreen(*state, view));
  }
}

int ShowLive(const TopOptions& options, const TopView& view, const CommandContext& context) {
  if (!context.terminal) {
    return Fail(context, absl::FailedPreconditionError("top needs a terminal; --once prints what it would show"));
  }
  // Before gRPC starts threads.
  FullScreen::BlockSignals();
  const absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  absl::StatusOr<std::unique_ptr<FullScreen>> screen = FullScreen::Take();
  if (!screen.ok()) return Fail(context, screen.status());
  (*screen)->Draw({absl::StrCat("asking ", (*connection)->address(), " ...")});
  TopFeed feed(connection->get(), absl::Seconds(options.interval_seconds));
  const absl::Status end = Show(screen->get(), &feed, view);
  // The feed may have to wait for an answer still.
  screen->reset();
  return end.ok() ? kExitSucceeded : Fail(context, end);
}

int ShowOnce(const TopView& view, const CommandContext& context) {
  const absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  TopState state;
  AskServer(connection->get(), &state);
  if (!state.lost.ok()) return Fail(context, state.lost);
  for (const std::string& line : TopScreen(state, view)) *context.out << line << "\n";
  *context.out << std::flush;
  return kExitSucceeded;
}

int RunTop(const TopOptions& options, const CommandContext& context) {
  TopView view;
  view.color = context.color;
  setlocale(LC_CTYPE, "");
  view.ascii = strcmp(nl_langinfo(CODESET), "UTF-8") != 0;
  return options.once ? ShowOnce(view, context) : ShowLive(options, view, context);
}

}  // namespace

void AddTop(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("top", "Show devices and jobs live, with curves of loss, loss scale and speed");
  auto options = std::make_shared<TopOptions>();
  verb->add_option("--interval", options->interval_seconds, "Seconds between looks")
      ->check(CLI::Range(0.1, 3600.0))
      ->type_name("SECONDS")
      ->capture_default_str();
  verb->add_flag("--once", options->once, "Print it once, 80 columns by 24 lines, and end");
  verb->footer(
      "Keys: q ends it, up and down (or k and j) choose the job with the curves, e hides jobs that ended, space looks "
      "now.\n"
      "In a curve x is a loss that was not finite.\nExample:\n  ampctl top --interval 2");
  verb->callback([options, context] { context->exit_code = RunTop(*options, *context); });
}

}  // namespace ampd::client
