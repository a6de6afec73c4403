#include "client/analysis/cost.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "client/commands/command.h"
#include "client/commands/explain.h"
#include "client/exit_code.h"

namespace ampd::client {
namespace {

int RunCost(const std::string& id, const CommandContext& context) {
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::StatusOr<JobAndEvents> found = FetchJob(connection->get(), id);
  if (!found.ok()) return Fail(context, found.status());
  const absl::StatusOr<v1::ListDevicesResponse> devices = (*connection)->ListDevices();
  if (!devices.ok()) return Fail(context, devices.status());
  const absl::StatusOr<v1::ServerInfo> server = (*connection)->GetServerInfo();
  if (!server.ok()) return Fail(context, server.status());
  const Cost cost = CostOf(found->job, found->events, {devices->devices().begin(), devices->devices().end()},
                           {server->device_models().begin(), server->device_models().end()}, UnixNow());
  *context.out << (context.format == Format::kTable ? CostText(found->job, cost) : CostJson(found->job, cost))
               << std::flush;
  return kExitSucceeded;
}

}  // namespace

void AddCost(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("cost", "What a job took: device time, dollars, and what of it was wasted");
  auto id = std::make_shared<std::string>();
  verb->add_option("JOB", *id, "Job id, or a unique prefix of at least 4 characters")->required();
  verb->footer("Example:\n  ampctl cost 01hq3v7m");
  verb->callback([id, context] { context->exit_code = RunCost(*id, *context); });
}

}  // namespace ampd::client
