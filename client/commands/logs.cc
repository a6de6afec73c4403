#include <CLI/CLI.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/time/time.h"
#include "client/commands/command.h"
#include "client/commands/since.h"
#include "client/exit_code.h"
#include "client/output/color.h"
#include "client/output/event_line.h"
#include "client/output/text.h"
#include "client/watch.h"
#include "proto/spec/event_kinds.h"

namespace ampd::client {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(120);

struct LogsOptions {
  std::string job;
  bool follow = false;
  std::optional<int64_t> tail;
  std::string since;
};

// What is told in words. Figures are what `watch` shows.
constexpr v1::JobEvent::PayloadCase kLogged[] = {
    v1::JobEvent::kStateChange, v1::JobEvent::kCheckpoint,      v1::JobEvent::kRewound,
    v1::JobEvent::kLog,         v1::JobEvent::kPrecisionChange, v1::JobEvent::kArtifact,
    v1::JobEvent::kModeChosen,  v1::JobEvent::kCorruptSample,   v1::JobEvent::kEnvironment};

bool IsLogged(const v1::JobEvent& event) { return absl::c_linear_search(kLogged, event.payload_case()); }

class Printer {
 public:
  Printer(absl::Time since, const CommandContext& context) : since_(since), context_(context) {}

  bool IsWanted(const v1::JobEvent& event) const {
    const auto& time = event.time();
    return IsLogged(event) && absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos()) >= since_;
  }
  void PrintPast(const std::deque<v1::JobEvent>& events) const {
    if (context_.format == Format::kJson) return PrintJsonList("events", events, *context_.out);
    for (const v1::JobEvent& event : events) Print(event);
  }
  void Print(const v1::JobEvent& event) const {
    if (context_.format != Format::kTable) return PrintMessage(event, context_.format, *context_.out);
    *context_.out << Paint(context_.color ? ColorOf(event) : Color::kNone, EventLine(event)) << std::endl;
  }

 private:
  absl::Time since_;
  const CommandContext& context_;
};

// The newest of those that have happened, as many as are asked for. A server of before it could choose them sends all.
absl::Status PrintPast(Connection* connection, const v1::Job& job, const LogsOptions& options, const Printer& printer) {
  std::deque<v1::JobEvent> newest;
  if (job.last_sequence() == 0 || options.tail == 0) {
    printer.PrintPast(newest);
    return absl::OkStatus();
  }
  v1::WatchJobRequest request;
  request.set_job_id(job.id());
  request.set_until_sequence(job.last_sequence());
  for (const v1::JobEvent::PayloadCase kind : kLogged) request.add_kinds(NameOfKind(kind));
  // With --since the newest of those that are new enough are meant, and clocks are set back.
  if (options.tail && options.since.empty()) request.set_tail(*options.tail);
  const absl::Status read = connection->ReadPast(request, kPatience, [&](const v1::JobEvent& event) {
    if (!printer.IsWanted(event)) return;
    newest.push_back(event);
    if (options.tail && static_cast<int64_t>(newest.size()) > *options.tail) newest.pop_front();
  });
  if (!read.ok()) return read;
  // Not within the call, which has a deadline: a pager reads when it likes.
  printer.PrintPast(newest);
  return absl::OkStatus();
}

int FollowLogs(Connection* connection, const v1::Job& job, const Printer& printer, Interrupt* interrupt,
               const CommandContext& context) {
  WatchOptions watch;
  watch.job_id = job.id();
  watch.after_sequence = job.last_sequence();
  const absl::StatusOr<v1::StateChange> end = WatchToTheEnd(
      connection, watch, interrupt,
      {.on_event =
           [&](const v1::JobEvent& event) {
             if (printer.IsWanted(event)) printer.Print(event);
           },
       .on_lost =
           [&](const absl::Status& status) {
             *context.err << "connection lost: " << Clean(status.message()) << "; reconnecting" << std::endl;
           },
       .on_resumed = [&] { *context.err << "reconnected" << std::endl; }});
  if (end.ok()) return kExitSucceeded;
  return interrupt->raised() ? kExitInterrupted : Fail(context, end.status());
}

int RunLogs(const LogsOptions& options, const CommandContext& context) {
  if (options.follow && context.format == Format::kJson) {
    *context.err << "ampctl: -o json is one document, and -f prints as it goes on; -o jsonl has a line for each event"
                 << std::endl;
    return kExitUsage;
  }
  absl::StatusOr<absl::Time> since = absl::InfinitePast();
  if (!options.since.empty()) since = ParseSince(options.since);
  if (!since.ok()) return Fail(context, since.status());
  Interrupt interrupt;
  if (options.follow) interrupt.CatchSignals();
  const absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::StatusOr<v1::Job> job = (*connection)->GetJob(options.job);
  if (!job.ok()) return Fail(context, job.status());
  const Printer printer(*since, context);
  const absl::Status past = PrintPast(connection->get(), *job, options, printer);
  if (!past.ok()) return Fail(context, past);
  if (!options.follow || IsTerminal(job->state())) return kExitSucceeded;
  return FollowLogs(connection->get(), *job, printer, &interrupt, context);
}

}  // namespace

void AddLogs(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("logs", "Show what a job says: its log lines, states, checkpoints and mishaps");
  auto options = std::make_shared<LogsOptions>();
  verb->add_option("JOB", options->job, "Job id, or a unique prefix of at least 4 characters")->required();
  verb->add_flag("-f,--follow", options->follow, "Go on until the job ends");
  verb->add_option("-n,--tail", options->tail, "Of what there is now, only the newest so many")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->type_name("N");
  verb->add_option("--since", options->since, "Only what is newer: an age (30m, 2h, 7d) or a time")->type_name("TIME");
  verb->footer(
      "Exits 0 however the job ended; ampctl watch shows its figures, too, and exits as the job does. Times are local "
      "(TZ).\n"
      "Example:\n  ampctl logs 01hq3v7m -f --tail 20");
  verb->callback([options, context] { context->exit_code = RunLogs(*options, *context); });
}

}  // namespace ampd::client
