#include "client/analysis/diff.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "client/commands/command.h"
#include "client/commands/explain.h"
#include "client/exit_code.h"

namespace ampd::client {
namespace {

int RunDiff(const std::string& a, const std::string& b, const CommandContext& context) {
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::StatusOr<JobAndEvents> first = FetchJob(connection->get(), a);
  if (!first.ok()) return Fail(context, first.status());
  const absl::StatusOr<JobAndEvents> second = FetchJob(connection->get(), b);
  if (!second.ok()) return Fail(context, second.status());
  *context.out << (context.format == Format::kTable ? DiffText(*first, *second, context.terminal)
                                                    : DiffJson(*first, *second))
               << std::flush;
  return kExitSucceeded;
}

}  // namespace

void AddDiff(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("diff", "How two jobs differ: specs, figures, losses");
  auto a = std::make_shared<std::string>(), b = std::make_shared<std::string>();
  verb->add_option("JOB1", *a, "Job id, or a unique prefix of at least 4 characters")->required();
  verb->add_option("JOB2", *b, "The other one")->required();
  verb->footer("Example:\n  ampctl diff 01hq3v7m 01hq3w2k");
  verb->callback([a, b, context] { context->exit_code = RunDiff(*a, *b, *context); });
}

}  // namespace ampd::client
