#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "client/commands/command.h"
#include "client/exit_code.h"
#include "client/output/job_text.h"

namespace ampd::client {
namespace {

int RunCancel(const std::vector<std::string>& ids, const CommandContext& context) {
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  int exit_code = kExitSucceeded;
  for (const std::string& id : ids) {
    const absl::StatusOr<v1::Job> job = (*connection)->CancelJob(id);
    if (!job.ok()) {
      exit_code = std::max(exit_code, Fail(context, job.status()));
    } else if (context.format == Format::kTable) {
      *context.out << job->id() << " " << StateText(*job) << std::endl;
    } else {
      PrintJob(*job, context);
    }
  }
  return exit_code;
}

}  // namespace

void AddCancel(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("cancel", "Stop jobs; a running one writes a checkpoint first");
  auto ids = std::make_shared<std::vector<std::string>>();
  verb->add_option("JOB", *ids, "Job ids, or unique prefixes of at least 4 characters")->required();
  verb->footer("Example:\n  ampctl cancel 01hq3v7m && ampctl wait 01hq3v7m");
  verb->callback([ids, context] { context->exit_code = RunCancel(*ids, *context); });
}

}  // namespace ampd::client
