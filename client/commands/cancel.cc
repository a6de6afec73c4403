#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "client/commands/command.h"
#include "client/exit_code.h"

namespace ampd::client {
namespace {

struct CancelOptions {
  std::vector<std::string> ids;
  std::string sweep_id;
  bool now = false;
  // What happens without `now`, said aloud.
  bool checkpoint = false;
};

int CancelSweep(const std::string& id, bool now, const CommandContext& context) {
  const absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::StatusOr<v1::JobSweep> sweep = (*connection)->CancelSweep(id, now);
  if (!sweep.ok()) return Fail(context, sweep.status());
  PrintSweep(*sweep, context);
  return kExitSucceeded;
}

int RunCancel(const CancelOptions& options, const CommandContext& context) {
  if (options.ids.empty() && options.sweep_id.empty()) {
    *context.err << "ampctl: cancel needs JOB or --sweep SWEEP" << std::endl;
    return kExitUsage;
  }
  int exit_code = kExitSucceeded;
  if (!options.sweep_id.empty()) exit_code = CancelSweep(options.sweep_id, options.now, context);
  if (options.ids.empty()) return exit_code;
  const int of_jobs = ForEachJob(options.ids, context, [&options](Connection& connection, const std::string& id) {
    return connection.CancelJob(id, options.now);
  });
  return std::max(exit_code, of_jobs);
}

}  // namespace

void AddCancel(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("cancel", "Stop jobs; a running one writes a checkpoint first, unless --now");
  auto options = std::make_shared<CancelOptions>();
  verb->add_option("JOB", options->ids, "Job ids, or unique prefixes of at least 4 characters");
  verb->add_option("--sweep", options->sweep_id, "Every job of this sweep that has not ended")->type_name("SWEEP");
  CLI::Option* now = verb->add_flag("--now", options->now,
                                    "Kill the workers: what they did since their last checkpoint is lost. Also of "
                                    "jobs that are being cancelled");
  verb->add_flag("--checkpoint", options->checkpoint, "Have the workers write a checkpoint first: the default")
      ->excludes(now);
  verb->footer("Example:\n  ampctl cancel 01hq3v7m && ampctl wait 01hq3v7m\n  ampctl cancel --sweep 01hq4b2x --now");
  verb->callback([options, context] { context->exit_code = RunCancel(*options, *context); });
}

}  // namespace ampd::client
