#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "client/commands/command.h"
#include "client/exit_code.h"
#include "client/output/text.h"

namespace ampd::client {
namespace {

struct CheckpointOptions {
  std::string id;
  int timeout_seconds = 600;
};

int RunCheckpoint(const CheckpointOptions& options, const CommandContext& context) {
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::StatusOr<v1::Checkpoint> checkpoint =
      (*connection)->CheckpointJob(options.id, absl::Seconds(options.timeout_seconds));
  if (!checkpoint.ok()) return Fail(context, checkpoint.status());
  if (context.format == Format::kTable) {
    *context.out << checkpoint->name() << " " << Bytes(checkpoint->size_bytes()) << std::endl;
  } else {
    PrintMessage(*checkpoint, context.format, *context.out);
  }
  return kExitSucceeded;
}

}  // namespace

void AddCheckpoint(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("checkpoint", "Have a running job write a checkpoint now, and wait for it");
  auto options = std::make_shared<CheckpointOptions>();
  verb->add_option("JOB", options->id, "Job id, or a unique prefix of at least 4 characters")->required();
  verb->add_option("--timeout", options->timeout_seconds, "Seconds to wait; the job writes it all the same")
      ->check(CLI::Range(1, 86400))
      ->type_name("SECONDS")
      ->capture_default_str();
  verb->footer("Example:\n  ampctl checkpoint 01hq3v7m && ampctl download 01hq3v7m ./glyphs");
  verb->callback([options, context] { context->exit_code = RunCheckpoint(*options, *context); });
}

}  // namespace ampd::client
