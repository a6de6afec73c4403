#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/core/status.h"
#include "server/jobs/job_id.h"
#include "server/store/database.h"
#include "tests/bench/service_load/parts.h"

namespace ampd::load {
namespace {

// A job that has ended, as one event tells.
JobWrite EndedJob(const v1::Job& like, const std::string& id, int64_t sequence) {
  JobWrite write;
  write.create = true;
  write.record.job = like;
  write.record.submit_sequence = sequence;
  v1::Job& job = write.record.job;
  job.set_id(id);
  job.set_state(v1::Job::SUCCEEDED);
  job.clear_devices();
  job.set_last_sequence(1);
  *job.mutable_end_time() = job.create_time();
  v1::JobEvent event;
  event.set_first_sequence(1);
  event.set_sequence(1);
  *event.mutable_time() = job.create_time();
  event.mutable_state_change()->set_to(v1::Job::SUCCEEDED);
  write.events.push_back(std::move(event));
  return write;
}

// Ends jobs in the store until it has `stored`; how many are still to run.
absl::StatusOr<int64_t> Fill(const std::string& state_dir, int64_t stored) {
  AMPD_ASSIGN_OR_RETURN(const std::unique_ptr<Database> database, Database::Open(state_dir));
  AMPD_ASSIGN_OR_RETURN(const auto counts, database->JobCounts());
  int64_t jobs = 0;
  for (const auto& [state, count] : counts) jobs += count;
  AMPD_ASSIGN_OR_RETURN(const JobPage page, database->ListJobs({.page_size = 1}));
  if (page.jobs.empty()) return absl::FailedPreconditionError("no job to take as a pattern");
  AMPD_ASSIGN_OR_RETURN(int64_t sequence, database->LastSubmitSequence());
  AMPD_ASSIGN_OR_RETURN(const std::string last_id, database->LastJobId());
  JobIdGenerator ids;
  ids.StartAfter(last_id);
  const int64_t active = jobs;
  AMPD_RETURN_IF_ERROR(database->Begin());
  for (; jobs < stored; ++jobs) {
    AMPD_RETURN_IF_ERROR(database->Apply(EndedJob(page.jobs[0], ids.Next(absl::Now()), ++sequence)));
  }
  AMPD_RETURN_IF_ERROR(database->Commit());
  return active;
}

}  // namespace

absl::Status MeasureRestart(const Sizes& sizes, const DaemonOptions& options, double short_page, Figures* figures) {
  AMPD_ASSIGN_OR_RETURN(const int64_t active, Fill(options.state_dir, sizes.stored));
  AMPD_ASSIGN_OR_RETURN(const std::unique_ptr<LoadDaemon> daemon, LoadDaemon::Start(options));
  figures->Below(absl::StrCat("start with ", sizes.stored, " stored jobs, ", active, " of them to run"),
                 absl::ToDoubleSeconds(daemon->start_time()), 2, "s");
  figures->Note(absl::StrCat("resident memory with ", sizes.stored, " stored jobs"),
                static_cast<double>(daemon->ResidentBytes()) / 1e6, "MB");
  return MeasurePages(sizes.stored, short_page, daemon.get(), figures);
}

}  // namespace ampd::load
