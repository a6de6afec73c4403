// The daemon's SQLite database: jobs, events, checkpoints, request ids and fleet counters in one file, in WAL mode with
// synchronous=FULL, so that what was committed survives `kill -9` and power loss.
#ifndef AMPD_SERVER_STORE_DATABASE_H_
#define AMPD_SERVER_STORE_DATABASE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/store/checksum_vfs.h"
#include "server/store/damage_book.h"
#include "server/store/records.h"

struct sqlite3;
struct sqlite3_stmt;

namespace ampd {

class Statement;

// Not thread-safe; one thread owns a connection. Errors of every function: RESOURCE_EXHAUSTED when the disk or the
// file's bound is full, DATA_LOSS naming the file when it is damaged, else INTERNAL with SQLite's message.
class Database {
 public:
  // Opens `state_dir`/ampd.db, creating both when missing, and brings the schema up to this program's version.
  // FAILED_PRECONDITION when another daemon uses `state_dir`, or a newer program wrote the database; DATA_LOSS, naming
  // the damaged pages and tables, when pages of a file of at most 1 GiB are damaged. Those of larger ones are found as
  // they are read.
  // `max_pages` bounds the file (4096-byte pages); 0 is no bound. `log`, which may be null, is told what whoever runs
  // the daemon should know: that pages are given checksums, or why not, and of each damaged page that is read, once. It
  // must be thread-safe.
  using Log = std::function<void(const std::string&)>;
  static absl::StatusOr<std::unique_ptr<Database>> Open(const std::string& state_dir, int64_t max_pages = 0,
                                                        Log log = nullptr);

  // A second connection to the database that `writer` has open, for another thread: it only reads, while the writer
  // goes on, and is to be gone before `writer`.
  static absl::StatusOr<std::unique_ptr<Database>> OpenReader(const Database& writer);

  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Which pages of the file have checksums, as far as this connection knows.
  PageSums Sums() const { return PageSumsOf(db_); }

  // Of the file, read by this connection and those to it since it was opened. Thread-safe.
  int64_t DamagedPages() const { return damage_->pages(); }

  // Bounds the file, 4096-byte pages; 0 is no bound.
  absl::Status SetMaxPages(int64_t max_pages);

  // A transaction; Apply and the reads may be used within.
  absl::Status Begin();
  absl::Status Commit();
  // Takes back everything since Begin; harmless outside a transaction.
  void Rollback();

  // database_readers.cc. What is read from here to EndRead() is of one moment; the number of the last commit it shows.
  absl::StatusOr<uint32_t> BeginRead() const;
  // Harmless without BeginRead.
  void EndRead() const;
  // The number that the last transaction with one gave itself; 0 without any. Kept in the file (user_version).
  absl::StatusOr<uint32_t> CommitNumber() const;
  absl::Status SetCommitNumber(uint32_t number);

  // database_log.cc, of the connection that writes. Pages in the log as of the last commit (ampd.db-wal). A commit with
  // kLogPages or more of them copies what it can into the file; the log begins anew only with a commit that finds all
  // of it copied and nobody reading from it.
  int64_t LogPages() const { return log_pages_; }
  static constexpr int64_t kLogPages = 1000;
  // Copies as much of the log into the file as readers allow, all of it when there are none. Waits for nobody. What
  // keeps it from copying is not lost: it stays in the log.
  void CopyLog() const;

  // ALREADY_EXISTS when a created job's id or request id is taken; NOT_FOUND when a job to change is absent;
  // INTERNAL when an event's sequence does not follow the log.
  absl::Status Apply(const JobWrite& write);

  // The job whose id is, or alone begins with, `prefix` (4 to 26 characters). NOT_FOUND when there is none;
  // INVALID_ARGUMENT when the prefix is too short, not lower-case ULID letters, or several jobs begin with it.
  // With `owner` there are that user's jobs only.
  absl::StatusOr<JobRecord> FindJob(absl::string_view prefix, const Owner& owner = std::nullopt) const;
  // The same job and errors, without reading it.
  absl::StatusOr<JobLocation> LocateJob(absl::string_view prefix, const Owner& owner = std::nullopt) const;
  // DATA_LOSS where there is none.
  absl::StatusOr<JobRecord> RecordOf(int64_t sequence) const;

  // Likewise of a sweep.
  absl::StatusOr<SweepRecord> FindSweep(absl::string_view prefix, const Owner& owner = std::nullopt) const;
  // Its jobs by submit sequence, without specs and plans.
  absl::StatusOr<std::vector<v1::Job>> SweepJobs(const SweepRecord& sweep) const;
  absl::StatusOr<std::vector<std::string>> SweepJobIds(const SweepRecord& sweep) const;

  // database_sweeps.cc. Newest first. What a page takes does not grow with the number of sweeps and jobs: it ends, with
  // fewer sweeps than asked for, behind the one with which these have kMaxListed jobs. INVALID_ARGUMENT for a page
  // token that this query did not give.
  absl::StatusOr<SweepPage> ListSweeps(const SweepQuery& query) const;

  // Every job that has not ended, by submit sequence.
  absl::StatusOr<std::vector<JobRecord>> ActiveJobs() const;

  // database_list.cc. Among equals the newer one comes first in descending order, last in ascending. What a page takes
  // does not grow with the number of jobs: it ends, with fewer jobs than asked for, after looking at kMaxListed of
  // them, and behind the job with which it has kMaxListBytes. Of an owner's query neither a page nor a token tells
  // anything of others' jobs. Pages stay right when jobs are added or change meanwhile: none that was there all the
  // time, and keeps its place in the order, is missed or comes twice. INVALID_ARGUMENT for a page token that this query
  // did not give.
  absl::StatusOr<JobPage> ListJobs(const JobQuery& query) const;
  static constexpr int64_t kMaxListed = 10'000;
  static constexpr size_t kMaxListBytes = 2 << 20;

  // The job's events after `after_sequence`, at most `limit`, and no more than fit into `max_bytes`, but one at least.
  // NOT_FOUND for an unknown job.
  absl::StatusOr<EventPage> ReadEvents(absl::string_view job_id, uint64_t after_sequence, int limit,
                                       size_t max_bytes = SIZE_MAX) const;

  // Empty when the request id was never used.
  absl::StatusOr<std::optional<RequestRecord>> FindRequest(absl::string_view request_id) const;

  // database_drains.cc. In place of what was said of the device before.
  absl::Status SetDrain(const DrainRecord& drain);
  // Harmless where there is none.
  absl::Status ClearDrain(absl::string_view device);
  absl::StatusOr<std::vector<DrainRecord>> Drains() const;

  // database_tokens.cc. In place of what was there of its id. ALREADY_EXISTS when another has the hash.
  absl::Status PutToken(const TokenRecord& record);
  // Oldest first.
  absl::StatusOr<std::vector<TokenRecord>> Tokens() const;

  absl::StatusOr<std::map<std::string, double>> Counters() const;
  // To be called within a transaction.
  absl::Status AddToCounters(const std::map<std::string, double>& deltas);
  // Likewise. Those that are not there are gone already.
  absl::Status RemoveCounters(const std::vector<std::string>& names);
  // How many jobs are in each state; states without one are absent.
  absl::StatusOr<std::map<v1::Job::State, int64_t>> JobCounts() const;
  // Of jobs in QUEUED, by id: since when they are; without those of which no event tells it.
  absl::StatusOr<std::map<std::string, absl::Time>> QueuedSince() const;
  // Of jobs that have not ended: the most steps that their events tell of. Reports that say less come where training
  // went back: between attempts, of each of which the last 200 events are read, or within one, where all of them are.
  absl::StatusOr<StepsOfJobs> LastSteps() const;
  // Of jobs in PAUSED, by id.
  absl::StatusOr<std::map<std::string, v1::Job::PauseReason>> PauseReasons() const;
  // 0 when there is no job yet.
  absl::StatusOr<int64_t> LastSubmitSequence() const;
  // Of the newest job; empty when there is none.
  absl::StatusOr<std::string> LastJobId() const;

 private:
  friend class Statement;
  Database(sqlite3* db, int lock_fd, std::string path, std::shared_ptr<DamageBook> damage);
  static absl::StatusOr<std::unique_ptr<Database>> Connect(const std::string& path, int lock_fd, int flags,
                                                           std::shared_ptr<DamageBook> damage);
  absl::Status Configure();
  // database_check.cc. That every page is what was written and what its table expects, of a file that is small enough
  // to look through.
  absl::Status Check() const;
  absl::Status CheckSums() const;
  absl::Status CheckHeader() const;
  absl::Status CheckLength() const;
  absl::Status CheckTables() const;
  // `what`, of damaged pages, and the tables that cannot be read.
  absl::Status Damaged(const std::string& what) const;
  // Whether the file now has all that was committed.
  bool CopyWholeLog() const;
  void EmptyLog() const;
  // Rewrites a file some or all of whose pages have none. Where that fails for another reason than damage, `log` is
  // told, and the pages stay as they are.
  absl::Status AddPageSums(const Log& log);
  // database_log.cc: counts the pages of the log, and copies it, after each commit.
  void WatchLog();
  absl::Status Migrate();
  absl::Status MigrateTo(int version, const char* sql);
  absl::Status Execute(const char* sql) const;
  absl::Status ApplyParts(const JobWrite& write);
  absl::StatusOr<EventPage> ReadEventsOf(absl::string_view job_id, uint64_t after_sequence, int limit,
                                         size_t max_bytes) const;
  absl::Status InsertJob(const JobWrite& write);
  // database_list.cc: of one job; and of those that older schemas left without.
  absl::Status InsertIntoIndex(int64_t sequence, const v1::Job& job);
  // Those that the stored spec has, from the index.
  absl::Status RemoveLabels(int64_t sequence);
  absl::Status FillJobIndex();
  absl::Status InsertRequest(const JobWrite& write);
  absl::Status InsertSweep(const JobWrite& write);
  // database_sweeps.cc: of the jobs with so many sequences from `first` on.
  absl::Status CountStates(int64_t first, int64_t jobs, v1::SweepSummary* sweep) const;
  absl::Status UpdateJob(const JobRecord& record);
  absl::Status UpdateSpec(const JobRecord& record);
  absl::Status AppendEvents(const JobWrite& write, uint64_t last_sequence);
  absl::Status InsertCheckpoint(int64_t job, const v1::JobEvent& event);
  absl::StatusOr<uint64_t> LastSequence(int64_t job) const;
  absl::Status ErrorOf(int code, absl::string_view what) const;

  sqlite3* db_;
  // -1 of a reader's connection.
  int lock_fd_;
  std::string path_;
  // Of all connections to the file.
  std::shared_ptr<DamageBook> damage_;
  int64_t log_pages_ = 0;
  // Compiled statements by the address of their text.
  mutable std::map<const char*, sqlite3_stmt*> statements_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_STORE_DATABASE_H_
