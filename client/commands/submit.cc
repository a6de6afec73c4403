#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "client/commands/create_job.h"
#include "client/exit_code.h"
#include "client/job_file.h"
#include "client/output/job_text.h"

namespace ampd::client {
namespace {

struct SubmitOptions {
  std::string file;
  std::vector<std::string> sets;
  bool watch = false;
  bool quiet = false;
  bool dry_run = false;
  std::string request_id;
};

void PrintSubmitted(const v1::Job& job, const SubmitOptions& options, const CommandContext& context) {
  if (options.quiet) {
    *context.out << job.id() << std::endl;
  } else if (context.format == Format::kTable) {
    *context.out << "submitted " << job.id() << " " << job.spec().name() << " " << StateText(job) << std::endl;
  } else if (options.watch) {
    *context.err << "submitted " << job.id() << std::endl;
  } else {
    PrintJob(job, context);
  }
}

int PrintValid(const v1::Job& job, const SubmitOptions& options, const CommandContext& context) {
  if (options.quiet) return kExitSucceeded;
  if (context.format == Format::kTable) {
    if (job.plan().layers().empty()) {
      *context.out << "the data could not be read, so shapes were not checked\n";
    } else {
      *context.out << PlanText(job.plan());
    }
    *context.out << "valid: " << job.spec().name() << "; nothing was submitted" << std::endl;
  } else {
    PrintJob(job, context);
  }
  return kExitSucceeded;
}

int RunSubmit(const SubmitOptions& options, const CommandContext& context) {
  const absl::StatusOr<JobFile> file = JobFile::Read(options.file, options.sets);
  if (!file.ok()) {
    // Each line names its place already.
    *context.err << file.status().message() << std::endl;
    return kExitUsage;
  }
  Interrupt interrupt;
  if (options.watch && !options.dry_run) interrupt.CatchSignals();
  const absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  v1::CreateJobRequest request;
  *request.mutable_spec() = file->spec();
  request.set_validate_only(options.dry_run);
  if (!options.dry_run) request.set_request_id(options.request_id.empty() ? NewRequestId() : options.request_id);
  const absl::StatusOr<v1::Job> job = CreateJob(connection->get(), request, &interrupt);
  if (!job.ok()) return Refused(*file, job.status(), context);
  if (options.dry_run) return PrintValid(*job, options, context);
  PrintSubmitted(*job, options, context);
  if (!options.watch) return kExitSucceeded;
  return Follow(connection->get(), {.job_id = job->id(), .quiet = options.quiet}, &interrupt, context);
}

}  // namespace

void AddSubmit(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("submit", "Queue a job described by a YAML or JSON file");
  auto options = std::make_shared<SubmitOptions>();
  verb->add_option("FILE", options->file, "Job file; - is standard input")->required();
  verb->add_option("--set", options->sets, "PATH=VALUE: change a field of the file; null clears it. May be given again")
      ->allow_extra_args(false);
  verb->add_flag("--watch", options->watch, "Follow the job to its end, and exit as watch does");
  verb->add_flag("-q,--quiet", options->quiet, "Print the job's id and nothing else");
  verb->add_flag("--dry-run", options->dry_run, "Validate and plan the job, and submit nothing");
  verb->add_option("--request-id", options->request_id,
                   "Makes a repeated submit one job; default: a new one, so that only retries within a submit are one");
  verb->footer(
      "Example:\n  ampctl submit glyphs-convnet.yaml --set precision.mode=BF16 --set train.epochs=2 --watch\n"
      "  ampctl submit job.yaml --set 'model.layers[0].conv2d.filters=64' --dry-run");
  verb->callback([options, context] { context->exit_code = RunSubmit(*options, *context); });
}

}  // namespace ampd::client
