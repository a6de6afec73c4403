#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "client/commands/command.h"
#include "client/exit_code.h"

namespace ampd::client {
namespace {

int RunGet(const std::string& id, const CommandContext& context) {
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::StatusOr<v1::Job> job = (*connection)->GetJob(id);
  if (!job.ok()) return Fail(context, job.status());
  PrintJob(*job, context);
  return kExitSucceeded;
}

}  // namespace

void AddGet(CLI::App* app, CommandContext* context) {
  CLI::App* verb =
      app->add_subcommand("get", "Show a job; -o json is all of it, -o yaml its spec as a file that submit takes");
  auto id = std::make_shared<std::string>();
  verb->add_option("JOB", *id, "Job id, or a unique prefix of at least 4 characters")->required();
  verb->footer("Example:\n  ampctl get 01hq3v7m -o yaml | ampctl submit - --set precision.mode=BF16");
  verb->callback([id, context] { context->exit_code = RunGet(*id, *context); });
}

}  // namespace ampd::client
