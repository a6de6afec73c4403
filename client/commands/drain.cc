#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "client/commands/command.h"
#include "client/exit_code.h"
#include "client/output/text.h"

namespace ampd::client {
namespace {

struct DrainOptions {
  std::string device;
  bool server = false;
  std::string reason;
  bool stop_jobs = false;
  std::optional<int> timeout_seconds;
};

int DrainTheServer(const DrainOptions& options, Connection* connection, const CommandContext& context) {
  v1::DrainServerRequest request;
  request.set_reason(options.reason);
  if (options.timeout_seconds) request.set_timeout_seconds(*options.timeout_seconds);
  const absl::StatusOr<v1::DrainServerResponse> response = connection->DrainServer(request);
  if (!response.ok()) return Fail(context, OfOptions(response.status(), {{"--reason", "reason"}}));
  if (context.format == Format::kTable) {
    *context.out << "draining; " << response->jobs() << (response->jobs() == 1 ? " job stops" : " jobs stop")
                 << std::endl;
  } else {
    PrintMessage(*response, context.format, *context.out);
  }
  return kExitSucceeded;
}

int RunDrain(const DrainOptions& options, const CommandContext& context) {
  if (options.server == !options.device.empty()) {
    return Fail(context, absl::InvalidArgumentError("give either a DEVICE or --server"));
  }
  if (options.server && options.stop_jobs) {
    return Fail(context, absl::InvalidArgumentError("--stop-jobs is for a DEVICE: a server stops all of its jobs"));
  }
  if (!options.server && options.timeout_seconds) {
    return Fail(context, absl::InvalidArgumentError("--timeout is for --server"));
  }
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  if (options.server) return DrainTheServer(options, connection->get(), context);
  v1::DrainDeviceRequest request;
  request.set_device_id(options.device);
  request.set_reason(options.reason);
  request.set_stop_jobs(options.stop_jobs);
  const absl::StatusOr<v1::Device> device = (*connection)->DrainDevice(request);
  if (!device.ok()) return Fail(context, OfOptions(device.status(), {{"--reason", "reason"}}));
  if (context.format == Format::kTable) {
    *context.out << device->id() << " drained: " << Clean(options.reason) << std::endl;
  } else {
    PrintMessage(*device, context.format, *context.out);
  }
  return kExitSucceeded;
}

}  // namespace

void AddDrain(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("drain", "Keep jobs off a device, or stop the server once its jobs are safe");
  auto options = std::make_shared<DrainOptions>();
  verb->add_option("DEVICE", options->device, "Its id, as `ampctl devices` lists it");
  verb->add_flag("--server", options->server, "All jobs checkpoint and are queued again, then the server exits");
  verb->add_option("--reason", options->reason, "For people; required with a DEVICE")->type_name("REASON");
  verb->add_flag("--stop-jobs", options->stop_jobs, "Jobs on the device checkpoint and are queued again");
  verb->add_option("--timeout", options->timeout_seconds, "Seconds until the server is gone; default: its own setting")
      ->check(CLI::Range(1, 366 * 24 * 3600))
      ->type_name("SECONDS");
  verb->footer(
      "`ampctl undrain` takes a drained device back.\n"
      "Examples:\n  ampctl drain GPU-5ad0 --reason 'fan replaced' --stop-jobs\n  ampctl drain --server --timeout 60");
  verb->callback([options, context] { context->exit_code = RunDrain(*options, *context); });
}

}  // namespace ampd::client
