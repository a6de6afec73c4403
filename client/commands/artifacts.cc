#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "client/exit_code.h"
#include "client/file_download.h"
#include "client/output/table.h"
#include "client/output/text.h"
#include "client/retry.h"

namespace ampd::client {
namespace {

struct ArtifactsOptions {
  std::string job_id;
  std::string name;
  std::string path;
};

constexpr int kAttempts = 5;

// The newest of each name, in the order of their steps: what DownloadArtifact gives.
using Artifacts = std::vector<v1::ArtifactSaved>;

void AddTo(Artifacts* artifacts, const v1::ArtifactSaved& artifact) {
  for (auto it = artifacts->begin(); it != artifacts->end(); ++it) {
    if (it->name() != artifact.name()) continue;
    artifacts->erase(it);
    break;
  }
  artifacts->push_back(artifact);
}

// From the job's events so far, whether it has ended or not.
absl::StatusOr<Artifacts> ArtifactsOf(Connection* connection, const std::string& job_id) {
  const absl::StatusOr<v1::Job> job = connection->GetJob(job_id);
  if (!job.ok()) return job.status();
  Artifacts artifacts;
  if (job->last_sequence() == 0) return artifacts;
  v1::WatchJobRequest request;
  request.set_job_id(job->id());
  Interrupt enough;
  const absl::Status status =
      connection->WatchJob(request, absl::Now() + absl::Minutes(10), &enough, [&](const v1::JobEvent& event) {
        if (event.has_artifact()) AddTo(&artifacts, event.artifact());
        if (event.sequence() >= job->last_sequence()) enough.Raise();
      });
  if (!status.ok() && !enough.raised()) return status;
  return artifacts;
}

int List(const Artifacts& artifacts, const CommandContext& context) {
  if (context.format == Format::kTable) {
    Table table({"NAME", ">SIZE", ">STEP", "TYPE"});
    for (const v1::ArtifactSaved& artifact : artifacts) {
      table.Add(
          {artifact.name(), Bytes(artifact.size_bytes()), absl::StrCat(artifact.step()), artifact.content_type()});
    }
    *context.out << table.ToString() << std::flush;
    return kExitSucceeded;
  }
  if (context.format == Format::kJson) {
    PrintJsonList("artifacts", artifacts, *context.out);
    return kExitSucceeded;
  }
  for (const v1::ArtifactSaved& artifact : artifacts) PrintMessage(artifact, context.format, *context.out);
  return kExitSucceeded;
}

absl::Status GetOnce(Connection* connection, const ArtifactsOptions& options, const CommandContext& context) {
  const std::string path = options.path.empty() ? options.name : options.path;
  absl::StatusOr<std::unique_ptr<FileDownload>> file = FileDownload::Create(path);
  if (!file.ok()) return file.status();
  v1::DownloadArtifactRequest request;
  request.set_job_id(options.job_id);
  request.set_name(options.name);
  absl::Status status =
      connection->DownloadArtifact(request, [&](const v1::FileChunk& chunk) { return (*file)->Add(chunk); });
  if (status.ok()) status = (*file)->Commit();
  if (!status.ok()) return status;
  PrintFetched({.kind = "artifact", .name = options.name, .path = path, .bytes = (*file)->bytes()}, context);
  return absl::OkStatus();
}

absl::Status Get(Connection* connection, const ArtifactsOptions& options, const CommandContext& context) {
  if (options.name.find('/') != std::string::npos) {
    return absl::InvalidArgumentError("--get: an artifact's name has no '/'");
  }
  Backoff backoff(absl::Milliseconds(200), absl::Seconds(2));
  Interrupt never;
  absl::Status status = GetOnce(connection, options, context);
  for (int attempt = 1; attempt < kAttempts && IsTransient(status); ++attempt) {
    never.SleepFor(backoff.Next());
    status = GetOnce(connection, options, context);
  }
  return status;
}

int RunArtifacts(const ArtifactsOptions& options, const CommandContext& context) {
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  if (!options.name.empty()) {
    const absl::Status status = Get(connection->get(), options, context);
    return status.ok() ? kExitSucceeded : Fail(context, status);
  }
  const absl::StatusOr<Artifacts> artifacts = ArtifactsOf(connection->get(), options.job_id);
  return artifacts.ok() ? List(*artifacts, context) : Fail(context, artifacts.status());
}

}  // namespace

void AddArtifacts(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("artifacts", "List the files that a job made to look at, or fetch one");
  auto options = std::make_shared<ArtifactsOptions>();
  verb->add_option("JOB", options->job_id, "Job id, or a unique prefix of at least 4 characters")->required();
  CLI::Option* get = verb->add_option("--get", options->name, "Fetch the file of this name")->type_name("ARTIFACT");
  verb->add_option("--to", options->path, "With --get: where to; default: its name. Nothing is overwritten")
      ->needs(get)
      ->type_name("PATH");
  verb->footer("Example:\n  ampctl artifacts 01hq3v7m --get samples-000000500.png");
  verb->callback([options, context] { context->exit_code = RunArtifacts(*options, *context); });
}

}  // namespace ampd::client
