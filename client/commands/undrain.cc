#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "client/commands/command.h"
#include "client/exit_code.h"

namespace ampd::client {
namespace {

int RunUndrain(const std::string& id, const CommandContext& context) {
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::StatusOr<v1::Device> device = (*connection)->UndrainDevice(id);
  if (!device.ok()) return Fail(context, device.status());
  if (context.format == Format::kTable) {
    *context.out << device->id() << " takes jobs again" << std::endl;
  } else {
    PrintMessage(*device, context.format, *context.out);
  }
  return kExitSucceeded;
}

}  // namespace

void AddUndrain(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("undrain", "Let jobs start on a drained device again");
  auto id = std::make_shared<std::string>();
  verb->add_option("DEVICE", *id, "Its id, as `ampctl devices` lists it")->required();
  verb->footer("Example:\n  ampctl undrain GPU-5ad0");
  verb->callback([id, context] { context->exit_code = RunUndrain(*id, *context); });
}

}  // namespace ampd::client
