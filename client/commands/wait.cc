#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "client/commands/command.h"
#include "client/exit_code.h"
#include "client/output/job_text.h"
#include "client/output/progress.h"
#include "client/seconds.h"
#include "client/watch.h"

namespace ampd::client {
namespace {

struct WaitOptions {
  std::vector<std::string> ids;
  std::string sweep_id;
  double timeout_seconds = 0;
};

// All that are waited for, as they are now: what is not there is told before anything is waited for.
absl::StatusOr<std::vector<v1::Job>> JobsOf(const WaitOptions& options, Connection* connection) {
  std::vector<std::string> ids = options.ids;
  if (!options.sweep_id.empty()) {
    const absl::StatusOr<v1::JobSweep> sweep = connection->GetSweep(options.sweep_id);
    if (!sweep.ok()) return sweep.status();
    for (const v1::Job& job : sweep->jobs()) ids.push_back(job.id());
  }
  std::vector<v1::Job> jobs;
  for (const std::string& id : ids) {
    absl::StatusOr<v1::Job> job = connection->GetJob(id);
    if (!job.ok()) return job.status();
    jobs.push_back(*std::move(job));
  }
  return jobs;
}

absl::StatusOr<v1::Job> WaitForOne(Connection* connection, const v1::Job& job, absl::Time deadline,
                                   Interrupt* interrupt, const CommandContext& context) {
  if (IsTerminal(job.state())) return job;
  WatchOptions watch;
  watch.job_id = job.id();
  watch.after_sequence = job.last_sequence();
  watch.deadline = deadline;
  const absl::StatusOr<v1::StateChange> end =
      WatchToTheEnd(connection, watch, interrupt,
                    {.on_event = [](const v1::JobEvent&) {},
                     .on_lost =
                         [&](const absl::Status& status) {
                           *context.err << "connection lost: " << status.message() << "; reconnecting" << std::endl;
                         },
                     .on_resumed = [] {}});
  if (!end.ok()) return end.status();
  return connection->GetJob(job.id());
}

void PrintEnd(const v1::Job& job, const CommandContext& context) {
  if (context.format == Format::kTable) {
    *context.out << job.id() << " " << ClosingLine(EndOf(job), job.summary()) << std::endl;
  } else {
    PrintJob(job, context);
  }
}

int RunWait(const WaitOptions& options, const CommandContext& context) {
  if (options.ids.empty() && options.sweep_id.empty()) {
    *context.err << "ampctl: wait needs JOB or --sweep SWEEP" << std::endl;
    return kExitUsage;
  }
  Interrupt interrupt;
  interrupt.CatchSignals();
  const absl::StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(context.server);
  if (!connection.ok()) return Fail(context, connection.status());
  const absl::Time deadline =
      options.timeout_seconds > 0 ? absl::Now() + absl::Seconds(options.timeout_seconds) : absl::InfiniteFuture();
  const absl::StatusOr<std::vector<v1::Job>> jobs = JobsOf(options, connection->get());
  if (!jobs.ok()) return Fail(context, jobs.status());
  const bool one_document = context.format == Format::kJson && (jobs->size() > 1 || !options.sweep_id.empty());
  v1::ListJobsResponse ended;
  bool failed = false, cancelled = false;
  for (const v1::Job& begun : *jobs) {
    const absl::StatusOr<v1::Job> job = WaitForOne(connection->get(), begun, deadline, &interrupt, context);
    if (!job.ok() && interrupt.raised()) return Detach(begun.id(), context);
    if (!job.ok() && absl::Now() >= deadline) {
      *context.err << "ampctl: timed out; the job continues: ampctl watch " << begun.id() << std::endl;
      return kExitTimeout;
    }
    if (!job.ok()) return Fail(context, job.status());
    if (one_document) {
      *ended.add_jobs() = *job;
    } else {
      PrintEnd(*job, context);
    }
    failed = failed || job->state() == v1::Job::FAILED;
    cancelled = cancelled || job->state() == v1::Job::CANCELLED;
  }
  if (one_document) PrintJobs(ended, context);
  if (failed) return kExitFailed;
  return cancelled ? kExitCancelled : kExitSucceeded;
}

}  // namespace

void AddWait(CLI::App* app, CommandContext* context) {
  CLI::App* verb = app->add_subcommand("wait", "Wait until jobs have ended");
  auto options = std::make_shared<WaitOptions>();
  verb->add_option("JOB", options->ids, "Job ids, or unique prefixes of at least 4 characters");
  verb->add_option("--sweep", options->sweep_id, "Every job of this sweep: its id, or a unique prefix")
      ->type_name("SWEEP");
  verb->add_option("--timeout", options->timeout_seconds, "Seconds to wait at most; default: no limit")
      ->check(Seconds(0.001, 1e9))
      ->type_name("SECONDS");
  verb->footer(
      "Exits 0 when all succeeded, 1 when one failed, 3 when one was cancelled, 124 when the time ran out.\n"
      "Example:\n  ampctl wait $(ampctl submit -q a.yaml) $(ampctl submit -q b.yaml)\n"
      "  ampctl wait --sweep $(ampctl submit -q sweep.yaml)");
  verb->callback([options, context] { context->exit_code = RunWait(*options, *context); });
}

}  // namespace ampd::client
