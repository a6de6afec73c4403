#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "client/commands/command.h"
#include "client/exit_code.h"
#include "client/output/sweep_text.h"

namespace ampd::client {
namespace {

int RunSweep(const std::string& id, const CommandContext& context) {
  const absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::StatusOr<v1::JobSweep> sweep = (*connection)->GetSweep(id);
  if (!sweep.ok()) return Fail(context, sweep.status());
  PrintSweep(*sweep, context);
  return kExitSucceeded;
}

}  // namespace

void PrintSweep(const v1::JobSweep& sweep, const CommandContext& context) {
  if (context.format != Format::kTable) return PrintMessage(sweep, context.format, *context.out);
  *context.out << SweepText(sweep, context.color) << "sweep " << sweep.id() << ", " << SweepCounts(sweep) << std::endl;
}

void AddSweep(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("sweep", "Show a sweep's jobs: what each sets, its state, its newest figures");
  auto id = std::make_shared<std::string>();
  verb->add_option("SWEEP", *id, "Its id, or a unique prefix of at least 4 characters")->required();
  verb->footer(
      "A job file with sweep: grid or list makes one; ampctl cancel --sweep SWEEP ends it, "
      "ampctl sweeps lists all.\n"
      "Example:\n  ampctl sweep 01hq3v7m");
  verb->callback([id, context] { context->exit_code = RunSweep(*id, *context); });
}

}  // namespace ampd::client
