#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "client/commands/create_job.h"
#include "client/exit_code.h"
#include "client/job_file.h"
#include "client/local_files.h"
#include "client/output/job_text.h"
#include "client/output/sweep_text.h"
#include "proto/spec/names.h"
#include "proto/spec/text.h"

namespace ampd::client {
namespace {

struct SubmitOptions {
  std::string file;
  std::vector<std::string> sets;
  bool watch = false;
  bool quiet = false;
  bool dry_run = false;
  std::string request_id;
  std::string resume_from;
  std::string continue_from;
  std::optional<std::string> name;
  std::optional<int> gpus;
  std::optional<int> priority;
  // KEY=VALUE.
  std::vector<std::string> labels;
};

// Those that --set could make as well come behind it.
absl::StatusOr<JobFile> ReadFile(const SubmitOptions& options) {
  // The server would give it one of its own.
  if (options.name && options.name->empty()) return absl::InvalidArgumentError("--name: must not be empty");
  absl::StatusOr<JobFile> file = JobFile::Read(options.file, options.sets);
  if (!file.ok()) return file;
  absl::Status set;
  // JSON is YAML.
  if (options.name) {
    set = file->SetByOption(absl::StrCat("--name ", *options.name), absl::StrCat("name=", QuoteJson(*options.name)));
  }
  if (set.ok() && options.gpus) {
    set = file->SetByOption(absl::StrCat("--gpus ", *options.gpus), absl::StrCat("resources.gpus=", *options.gpus));
  }
  if (set.ok() && options.priority) {
    set = file->SetByOption(absl::StrCat("--priority ", *options.priority),
                            absl::StrCat("resources.priority=", *options.priority));
  }
  return set.ok() ? std::move(file) : absl::StatusOr<JobFile>(std::move(set));
}

absl::Status AddLabels(const std::vector<std::string>& labels, JobFile* file, v1::JobSpec* spec) {
  for (const std::string& label : labels) {
    const size_t equals = label.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(absl::StrCat("--label: ", Quoted(label), " is not KEY=VALUE"));
    }
    const std::string key = label.substr(0, equals);
    (*spec->mutable_labels())[key] = label.substr(equals + 1);
    file->NoteOption(absl::StrCat("--label ", label), absl::StrCat("labels.", key));
  }
  return absl::OkStatus();
}

void PrintSubmitted(const v1::Job& job, const SubmitOptions& options, const CommandContext& context) {
  if (options.quiet) {
    *context.out << job.id() << std::endl;
  } else if (context.format == Format::kTable) {
    // Why it waits, if it does, is not known before the scheduler has looked at it.
    *context.out << "submitted " << job.id() << " " << job.spec().name() << " " << v1::Job::State_Name(job.state())
                 << std::endl;
  } else if (options.watch) {
    *context.err << "submitted " << job.id() << std::endl;
  } else {
    PrintJob(job, context);
  }
}

// What --resume-from or --continue-from names, in place of what the file does.
absl::Status TakeSource(const SubmitOptions& options, JobFile* file, v1::JobSpec* spec) {
  if (!options.resume_from.empty()) {
    absl::StatusOr<v1::WeightSource> source = ParseResumeFrom(options.resume_from);
    if (!source.ok()) return source.status();
    // It is about the model, whatever the weights.
    source->set_allow_missing(spec->start_from().allow_missing());
    *spec->mutable_start_from() = *std::move(source);
    file->NoteOption(absl::StrCat("--resume-from ", options.resume_from), "start_from");
  }
  if (!options.continue_from.empty()) {
    absl::StatusOr<v1::WeightSource> source = ParseContinueFrom(options.continue_from);
    if (!source.ok()) return source.status();
    *spec->mutable_start_from() = *std::move(source);
    file->NoteOption(absl::StrCat("--continue-from ", options.continue_from), "start_from");
  }
  return absl::OkStatus();
}

void SayWhatIsTaken(const SubmitOptions& options, const v1::JobSpec& spec, const CommandContext& context) {
  // Files have weights alone anyway.
  const bool of_job = !options.resume_from.empty() && !spec.start_from().job_id().empty();
  if (!of_job || options.quiet) return;
  *context.err << "weights alone are taken; --continue-from goes on with optimizer and step" << std::endl;
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

int SubmitSweep(const JobFile& file, v1::JobSpec spec, Connection* connection, Interrupt* interrupt,
                const SubmitOptions& options, const CommandContext& context) {
  v1::CreateSweepRequest request;
  *request.mutable_spec() = std::move(spec);
  request.set_validate_only(options.dry_run);
  if (!options.dry_run) request.set_request_id(options.request_id.empty() ? NewRequestId() : options.request_id);
  const absl::StatusOr<v1::JobSweep> sweep = CreateSweep(connection, request, interrupt);
  if (!sweep.ok()) return Refused(file, sweep.status(), context);
  Warn(file, sweep->warnings(), context);
  SayWhatIsTaken(options, request.spec(), context);
  if (options.quiet) {
    if (!options.dry_run) *context.out << sweep->id() << std::endl;
  } else if (options.dry_run && context.format == Format::kTable) {
    *context.out << "valid: a sweep of " << SweepCounts(*sweep) << "; nothing was submitted" << std::endl;
  } else {
    PrintSweep(*sweep, context);
  }
  return kExitSucceeded;
}

int RunSubmit(const SubmitOptions& options, const CommandContext& context) {
  absl::StatusOr<JobFile> file = ReadFile(options);
  if (!file.ok()) {
    // Each line names its place already.
    *context.err << file.status().message() << std::endl;
    return kExitUsage;
  }
  if (options.watch && file->spec().has_sweep()) {
    *context.err << "--watch follows one job, and a sweep has many; ampctl sweep SWEEP shows it" << std::endl;
    return kExitUsage;
  }
  Interrupt interrupt;
  if (options.watch && !options.dry_run) interrupt.CatchSignals();
  const absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  v1::CreateJobRequest request;
  *request.mutable_spec() = file->spec();
  if (const absl::Status status = AddLabels(options.labels, &*file, request.mutable_spec()); !status.ok()) {
    return Fail(context, status);
  }
  if (const absl::Status status = TakeSource(options, &*file, request.mutable_spec()); !status.ok()) {
    *context.err << status.message() << std::endl;
    return kExitUsage;
  }
  const absl::Status sent = UploadLocalFiles(*file, connection->get(), &interrupt,
                                             options.quiet ? nullptr : context.err, request.mutable_spec());
  if (!sent.ok()) return Refused(*file, sent, context);
  if (request.spec().has_sweep()) {
    return SubmitSweep(*file, std::move(*request.mutable_spec()), connection->get(), &interrupt, options, context);
  }
  request.set_validate_only(options.dry_run);
  if (!options.dry_run) request.set_request_id(options.request_id.empty() ? NewRequestId() : options.request_id);
  const absl::StatusOr<v1::Job> job = CreateJob(connection->get(), request, &interrupt);
  if (!job.ok()) return Refused(*file, job.status(), context);
  Warn(*file, job->plan().warnings(), context);
  SayWhatIsTaken(options, request.spec(), context);
  if (options.dry_run) return PrintValid(*job, options, context);
  PrintSubmitted(*job, options, context);
  if (!options.watch) return kExitSucceeded;
  return Follow(connection->get(), {.job_id = job->id(), .quiet = options.quiet}, &interrupt, context);
}

}  // namespace

void AddSubmit(CLI::App* app, CommandContext* context) {
  CLI::App* verb =
      app->add_subcommand("submit", "Queue the job, or the sweep of jobs, that a YAML or JSON file describes");
  auto options = std::make_shared<SubmitOptions>();
  verb->add_option("FILE", options->file, "Job file; - is standard input")->required();
  verb->add_option("--set", options->sets, "Change a field of the file; null clears it. May be given again")
      ->allow_extra_args(false)
      ->type_name("PATH=VALUE");
  verb->add_option("--name", options->name, "Its name, in place of the file's")->type_name("NAME");
  verb->add_option("--gpus", options->gpus, "Devices, all at once; the job trains data parallel on them")
      ->check(CLI::Range(1, 64))
      ->type_name("N");
  verb->add_option("--priority", options->priority,
                   "Higher runs first, -1000 to 1000; without an administrator's token up to what the server allows")
      ->type_name("N");
  verb->add_option("--label", options->labels, "For finding it again, besides the file's; may be given again")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
  verb->add_flag("--watch", options->watch, "Follow the job to its end, and exit as watch does");
  verb->add_flag("-q,--quiet", options->quiet, "Print the id of the job, or the sweep, and nothing else");
  verb->add_option(
          "--resume-from", options->resume_from,
          "Start from these weights, in place of those that start_from names: FILE.safetensors of this machine, JOB "
          "(an "
          "id or a prefix; its newest checkpoint), JOB@CHECKPOINT or JOB@best. The optimizer, the loss scale and the "
          "steps begin anew; start_from.allow_missing stays as it is")
      ->type_name("FILE|JOB");
  verb->add_option(
          "--continue-from", options->continue_from,
          "Go on with the training of JOB (an id or a prefix) where its newest checkpoint, or that of JOB@CHECKPOINT "
          "or "
          "JOB@best, stands, with its optimizer, loss scale and steps, which count in the length that the file gives; "
          "in place of start_from")
      ->excludes("--resume-from")
      ->type_name("JOB");
  verb->add_flag("--dry-run", options->dry_run,
                 "Validate and plan the job, and submit nothing; local files are sent all the same");
  verb->add_option("--request-id", options->request_id,
                   "Makes a repeated submit one job; default: a new one, so that only retries within a submit are one")
      ->type_name("ID");
  verb->footer(std::string(kLocalFilesHelp) +
               "\nExample:\n  ampctl submit job.yaml --set precision.mode=BF16 --set train.epochs=2 --watch\n"
               "  ampctl submit job.yaml --name wide --gpus 2 --label team=vision\n"
               "  ampctl submit job.yaml --set 'model.layers[0].conv2d.filters=64' --dry-run\n"
               "  ampctl submit finetune.yaml --resume-from 01hq3v7m@step-000000500\n"
               "  ampctl submit job.yaml --set train.epochs=20 --continue-from 01hq3v7m");
  verb->callback([options, context] { context->exit_code = RunSubmit(*options, *context); });
}

}  // namespace ampd::client
