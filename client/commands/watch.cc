#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "client/commands/command.h"

namespace ampd::client {
namespace {

int RunWatch(const FollowOptions& options, const CommandContext& context) {
  Interrupt interrupt;
  interrupt.CatchSignals();
  const absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  if (options.after_sequence > 0) {
    // A quiet job's stream has nothing that would tell that the server is there.
    const absl::StatusOr<v1::Job> job = (*connection)->GetJob(options.job_id);
    if (!job.ok()) return Fail(context, job.status());
  }
  return Follow(connection->get(), options, &interrupt, context);
}

}  // namespace

void AddWatch(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("watch", "Show a job's events until it ends");
  auto options = std::make_shared<FollowOptions>();
  verb->add_option("JOB", options->job_id, "Job id, or a unique prefix of at least 4 characters")->required();
  verb->add_option("--after", options->after_sequence, "Skip the events up to this sequence number")->type_name("N");
  verb->footer(
      "Exits 0 when the job succeeded, 1 when it failed, 3 when it was cancelled. A lost connection is made anew for "
      "up\n"
      "to 10 minutes, and no event is lost. Ctrl-C leaves the job running. -o jsonl prints each event as a line of\n"
      "JSON; -o json and -o yaml print the job when it has ended.\n"
      "Example:\n  ampctl watch 01hq3v7m -o jsonl | jq -c 'select(.overflow_skip)'");
  verb->callback([options, context] { context->exit_code = RunWatch(*options, *context); });
}

}  // namespace ampd::client
