#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/commands/command.h"
#include "client/exit_code.h"
#include "client/output/table.h"
#include "client/output/text.h"

namespace ampd::client {
namespace {

void PrintTable(const v1::ListDevicesResponse& response, std::ostream& out) {
  Table table({"ID", "KIND", "NAME", ">THREADS", ">MEMORY", ">USED", ">LOAD", "JOB"});
  for (const v1::Device& device : response.devices()) {
    table.Add({device.id(), v1::Device::Kind_Name(device.kind()), device.name(),
               device.threads() > 0 ? absl::StrCat(device.threads()) : "-", Bytes(device.memory_total_bytes()),
               Bytes(device.memory_used_bytes()), absl::StrFormat("%.0f%%", 100 * device.utilization()),
               device.job_id().empty() ? "-" : device.job_id()});
  }
  out << table.ToString() << std::flush;
}

int RunDevices(const CommandContext& context) {
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::StatusOr<v1::ListDevicesResponse> response = (*connection)->ListDevices();
  if (!response.ok()) return Fail(context, response.status());
  if (context.format == Format::kTable) {
    PrintTable(*response, *context.out);
  } else if (context.format == Format::kJsonl) {
    for (const v1::Device& device : response->devices()) PrintMessage(device, context.format, *context.out);
  } else {
    PrintMessage(*response, context.format, *context.out);
  }
  return kExitSucceeded;
}

}  // namespace

void AddDevices(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("devices", "List what jobs can train on");
  verb->footer("Example:\n  ampctl devices -o json");
  verb->callback([context] { context->exit_code = RunDevices(*context); });
}

}  // namespace ampd::client
