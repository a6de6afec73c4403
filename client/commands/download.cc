#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "client/checkpoint_writer.h"
#include "client/commands/command.h"
#include "client/exit_code.h"
#include "client/output/text.h"
#include "client/retry.h"

namespace ampd::client {
namespace {

struct DownloadOptions {
  std::string job_id;
  std::string folder;
  std::string checkpoint;
};

absl::Status DownloadOnce(Connection* connection, const DownloadOptions& options, const CommandContext& context) {
  absl::StatusOr<std::unique_ptr<CheckpointWriter>> writer = CheckpointWriter::Create(options.folder);
  if (!writer.ok()) return writer.status();
  v1::DownloadCheckpointRequest request;
  request.set_job_id(options.job_id);
  request.set_checkpoint(options.checkpoint);
  absl::Status status =
      connection->DownloadCheckpoint(request, [&](const v1::FileChunk& chunk) { return (*writer)->Add(chunk); });
  if (status.ok()) status = (*writer)->Commit();
  if (!status.ok()) return status;
  *context.out << Clean((*writer)->checkpoint()) << ": " << (*writer)->files() << " files, "
               << Bytes((*writer)->bytes()) << " in " << options.folder << std::endl;
  return absl::OkStatus();
}

int RunDownload(const DownloadOptions& options, const CommandContext& context) {
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  constexpr int kAttempts = 5;
  Backoff backoff(absl::Milliseconds(200), absl::Seconds(2));
  Interrupt never;
  absl::Status status = DownloadOnce(connection->get(), options, context);
  for (int attempt = 1; attempt < kAttempts && IsTransient(status); ++attempt) {
    never.SleepFor(backoff.Next());
    status = DownloadOnce(connection->get(), options, context);
  }
  return status.ok() ? kExitSucceeded : Fail(context, status);
}

}  // namespace

void AddDownload(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("download", "Fetch a checkpoint into a new folder");
  auto options = std::make_shared<DownloadOptions>();
  verb->add_option("JOB", options->job_id, "Job id, or a unique prefix of at least 4 characters")->required();
  verb->add_option("DIR", options->folder, "Folder to make; it must not exist yet, or be empty")->required();
  verb->add_option("--checkpoint", options->checkpoint, "Name from a checkpoint event; default: the newest");
  verb->footer(
      "Nothing is overwritten, and all of the checkpoint arrives or nothing does.\n"
      "Example:\n  ampctl download 01hq3v7m ./glyphs && ls glyphs/model.safetensors");
  verb->callback([options, context] { context->exit_code = RunDownload(*options, *context); });
}

}  // namespace ampd::client
