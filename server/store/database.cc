#include "server/store/database.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/core/status.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/util/delimited_message_util.h"
#include "proto/spec/names.h"
#include "server/files/files.h"
#include "server/store/checksum_vfs.h"
#include "server/store/page_sum.h"
#include "server/store/reserve.h"
#include "server/store/schema.h"
#include "server/store/statement.h"

namespace ampd {
namespace {

constexpr char kRecordColumns[] =
    "j.sequence, j.job, s.spec, s.plan, j.worker_pid, j.worker_start_time, j.token_hash, j.session_key_hash, "
    "j.worker_number, j.last_reported_step, j.run_seconds, j.running_since, j.lost_attempts, j.checkpoint_seconds, "
    "j.overtook, j.datasets, j.cancel_now, j.at_checkpoints, j.charged";

// Of ids that begin alike so many are named.
constexpr size_t kNamedCandidates = 5;

// `candidates`: the newest first, one more than are named where there are more.
absl::Status Ambiguous(absl::string_view what, absl::string_view prefix, std::vector<std::string> candidates) {
  const bool more = candidates.size() > kNamedCandidates;
  if (more) candidates.resize(kNamedCandidates);
  return absl::InvalidArgumentError(absl::StrCat("several ", what, " begin with ", prefix, ": ",
                                                 absl::StrJoin(candidates, ", "), more ? " and older ones" : "",
                                                 "; give more of the id"));
}

// The schema that has job_index.
constexpr int64_t kJobIndexVersion = 2;

absl::Status MakeStateDir(const std::string& dir) {
  std::error_code error;
  if (std::filesystem::is_directory(dir, error)) return absl::OkStatus();
  std::filesystem::create_directories(dir, error);
  if (error) return absl::InternalError(absl::StrCat("create state directory ", dir, ": ", error.message()));
  if (chmod(dir.c_str(), 0700) != 0) return FileError(absl::StrCat("chmod ", dir), errno);
  return SyncFolder(std::filesystem::absolute(dir).parent_path().string());
}

// The lock belongs to the open file, so it ends with the process however that ends.
absl::StatusOr<int> LockStateDir(const std::string& dir) {
  const std::string path = absl::StrCat(dir, "/ampd.lock");
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return FileError(absl::StrCat("open ", path), errno);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const bool held = errno == EWOULDBLOCK;
    const absl::Status error = FileError(absl::StrCat("lock ", path), errno);
    char owner[32] = {};
    const ssize_t size = pread(fd, owner, sizeof(owner) - 1, 0);
    close(fd);
    if (!held) return error;
    return absl::FailedPreconditionError(
        absl::StrCat("state directory ", dir, " is in use by another ampd (pid ", size > 0 ? owner : "unknown", ")"));
  }
  // Only for that message: a lock file that cannot be written to locks all the same.
  const std::string pid = absl::StrCat(getpid());
  if (ftruncate(fd, 0) == 0 && pwrite(fd, pid.data(), pid.size(), 0) < 0) errno = 0;
  return fd;
}

std::string SummariesText(const std::map<int64_t, v1::JobSummary>& summaries) {
  std::ostringstream text;
  for (const auto& [step, summary] : summaries) {
    google::protobuf::util::SerializeDelimitedToOstream(summary, &text);
  }
  return text.str();
}

bool ReadSummaries(const std::string& text, std::map<int64_t, v1::JobSummary>* summaries) {
  google::protobuf::io::ArrayInputStream stream(text.data(), static_cast<int>(text.size()));
  while (true) {
    v1::JobSummary summary;
    bool at_end = false;
    if (!google::protobuf::util::ParseDelimitedFromZeroCopyStream(&summary, &stream, &at_end)) return at_end;
    summaries->insert_or_assign(summary.step(), std::move(summary));
  }
}

constexpr int64_t kUpToNow = -1;

void AppendCharged(int64_t step, const Charged& charged, std::string* text) {
  absl::StrAppendFormat(text, "%d %.17g %.17g %.17g %.17g\n", step, charged.device_seconds, charged.usd,
                        charged.wasted_device_seconds, charged.wasted_usd);
}

std::string ChargedText(const JobRecord& record) {
  std::string text;
  AppendCharged(kUpToNow, record.charged, &text);
  for (const auto& [step, charged] : record.charged_at_checkpoints) AppendCharged(step, charged, &text);
  return text;
}

bool IsCharge(const Charged& charged) {
  for (const double value : {charged.device_seconds, charged.usd, charged.wasted_device_seconds, charged.wasted_usd}) {
    if (!std::isfinite(value) || value < 0) return false;
  }
  return true;
}

bool ReadCharged(const std::string& text, JobRecord* record) {
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, ' ');
    int64_t step = 0;
    Charged charged;
    if (parts.size() != 5 || !absl::SimpleAtoi(parts[0], &step) ||
        !absl::SimpleAtod(parts[1], &charged.device_seconds) || !absl::SimpleAtod(parts[2], &charged.usd) ||
        !absl::SimpleAtod(parts[3], &charged.wasted_device_seconds) ||
        !absl::SimpleAtod(parts[4], &charged.wasted_usd) || !IsCharge(charged)) {
      return false;
    }
    (step == kUpToNow ? record->charged : record->charged_at_checkpoints[step]) = charged;
  }
  return true;
}

absl::StatusOr<JobRecord> RecordAt(const Statement& row) {
  JobRecord record;
  record.submit_sequence = row.IntAt(0);
  AMPD_RETURN_IF_ERROR(row.ParseAt(1, &record.job));
  AMPD_RETURN_IF_ERROR(row.ParseAt(2, record.job.mutable_spec()));
  AMPD_RETURN_IF_ERROR(row.ParseAt(3, record.job.mutable_plan()));
  record.worker.pid = row.IntAt(4);
  record.worker.start_time = static_cast<uint64_t>(row.IntAt(5));
  record.token_hash = row.BytesAt(6);
  record.session_key_hash = row.BytesAt(7);
  record.worker_number = static_cast<uint64_t>(row.IntAt(8));
  record.last_reported_step = row.IntAt(9);
  record.run_seconds = row.RealAt(10);
  if (!row.NullAt(11)) record.run_counted = absl::Nanoseconds(row.IntAt(11));
  record.lost_attempts = static_cast<int32_t>(row.IntAt(12));
  if (!row.NullAt(13)) record.checkpoint_time = absl::Seconds(row.RealAt(13));
  record.overtook = absl::StrSplit(row.BytesAt(14), ',', absl::SkipEmpty());
  const std::string datasets = row.BytesAt(15);
  for (const absl::string_view one : absl::StrSplit(datasets, ',', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> dataset = absl::StrSplit(one, absl::MaxSplits('=', 1));
    record.datasets.insert(dataset);
  }
  record.cancel_now = row.IntAt(16) != 0;
  if (!ReadSummaries(row.BytesAt(17), &record.at_checkpoints)) {
    return absl::DataLossError(absl::StrCat("job ", record.job.id(), ": the summaries at its checkpoints are damaged"));
  }
  // Only what its waste is reckoned with: no reason to keep a job out.
  if (!ReadCharged(row.BytesAt(18), &record)) {
    record.charged = Charged();
    record.charged_at_checkpoints.clear();
  }
  return record;
}

// The part of the job that changes.
std::string ChangingPart(const v1::Job& job) {
  v1::Job part = job;
  part.clear_spec();
  part.clear_plan();
  return part.SerializeAsString();
}

bool IsIdPrefix(absl::string_view prefix) {
  return prefix.size() >= 4 && prefix.size() <= 26 &&
         prefix.find_first_not_of("0123456789abcdefghjkmnpqrstvwxyz") == absl::string_view::npos;
}

}  // namespace

Database::Database(sqlite3* db, int lock_fd, std::string path, std::shared_ptr<DamageBook> damage)
    : db_(db), lock_fd_(lock_fd), path_(std::move(path)), damage_(std::move(damage)) {}

absl::StatusOr<std::unique_ptr<Database>> Database::Open(const std::string& state_dir, int64_t max_pages, Log log) {
  AMPD_RETURN_IF_ERROR(MakeStateDir(state_dir));
  AMPD_ASSIGN_OR_RETURN(const int lock_fd, LockStateDir(state_dir));
  const std::string path = absl::StrCat(state_dir, "/ampd.db");
  AMPD_ASSIGN_OR_RETURN(
      std::unique_ptr<Database> database,
      Connect(path, lock_fd, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, std::make_shared<DamageBook>(path, log)));
  absl::Status configured = database->Configure();
  if (absl::IsResourceExhausted(configured) && UseReserve(state_dir)) configured = database->Configure();
  // SQLite notices that pages are missing, and does not say so.
  if (absl::IsDataLoss(configured) && !LastDamagedPage(database->db_)) AMPD_RETURN_IF_ERROR(database->CheckLength());
  AMPD_RETURN_IF_ERROR(configured);
  AMPD_RETURN_IF_ERROR(database->Check());
  AMPD_RETURN_IF_ERROR(database->Migrate());
  AMPD_RETURN_IF_ERROR(database->AddPageSums(log));
  AMPD_RETURN_IF_ERROR(database->SetMaxPages(max_pages));
  KeepReserve(state_dir);
  AMPD_RETURN_IF_ERROR(SyncFolder(state_dir));
  return database;
}

absl::StatusOr<std::unique_ptr<Database>> Database::Connect(const std::string& path, int lock_fd, int flags,
                                                            std::shared_ptr<DamageBook> damage) {
  sqlite3* db = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &db, flags | SQLITE_OPEN_NOMUTEX, ChecksumVfs());
  // Owns both from here on, whatever fails.
  std::unique_ptr<Database> database(new Database(db, lock_fd, path, damage));
  if (code != SQLITE_OK) return database->ErrorOf(code, "open");
  SetOnDamage(db, [damage](const DamagedPage& page) { damage->Note(page); });
  sqlite3_extended_result_codes(db, 1);
  sqlite3_busy_timeout(db, 5000);
  return database;
}

Database::~Database() {
  for (const auto& [sql, statement] : statements_) sqlite3_finalize(statement);
  sqlite3_close(db_);
  if (lock_fd_ < 0) return;
  // The log has just given back as much.
  KeepReserve(std::filesystem::path(path_).parent_path());
  close(lock_fd_);
}

absl::Status Database::Configure() {
  // Of a file without pages, of which this is the first; others have what they have.
  int reserved = kPageSumBytes;
  sqlite3_file_control(db_, "main", SQLITE_FCNTL_RESERVE_BYTES, &reserved);
  AMPD_RETURN_IF_ERROR(Execute("PRAGMA journal_mode=WAL"));
  AMPD_RETURN_IF_ERROR(Execute("PRAGMA synchronous=FULL"));
  AMPD_RETURN_IF_ERROR(Execute("PRAGMA cell_size_check=ON"));
  WatchLog();
  return Execute("PRAGMA trusted_schema=OFF");
}

absl::Status Database::SetMaxPages(int64_t max_pages) {
  // SQLite's own largest number.
  if (max_pages == 0) max_pages = 4294967294;
  return Execute(absl::StrCat("PRAGMA max_page_count=", max_pages).c_str());
}

absl::Status Database::Execute(const char* sql) const {
  const int code = sqlite3_exec(db_, sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : ErrorOf(code, sql);
}

absl::Status Database::ErrorOf(int code, absl::string_view what) const {
  // The errno is that of an earlier call.
  const auto damaged = code == SQLITE_IOERR_DATA ? LastDamagedPage(db_) : std::nullopt;
  if (damaged) {
    return absl::DataLossError(absl::StrCat(path_, ": page ", damaged->number, " is damaged: it ", damaged->what, " (",
                                            what.substr(0, 60), ")"));
  }
  const std::string message = absl::StrCat(path_, ": ", sqlite3_errmsg(db_), " (", what.substr(0, 60), ")");
  const int system_error = sqlite3_system_errno(db_);
  switch (code & 0xff) {
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(message);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(message);
    case SQLITE_CONSTRAINT:
      return absl::AlreadyExistsError(message);
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
      // SQLite tells a full disk apart, but loses the errno of a quota or a file-size limit in the log.
      if (code == SQLITE_IOERR_WRITE && system_error == 0) {
        return absl::ResourceExhaustedError(
            absl::StrCat(message, ": the file cannot grow: a quota, a file-size limit or a failing disk"));
      }
      if (system_error == ENOSPC || system_error == EDQUOT || system_error == EFBIG) {
        return absl::ResourceExhaustedError(absl::StrCat(message, ": ", strerror(system_error)));
      }
      return absl::InternalError(absl::StrCat(message, ": ", strerror(system_error)));
    default:
      return absl::InternalError(message);
  }
}

absl::Status Database::Migrate() {
  AMPD_RETURN_IF_ERROR(
      Execute("CREATE TABLE IF NOT EXISTS migrations(version INTEGER PRIMARY KEY, time TEXT NOT NULL)"));
  int64_t version = 0;
  {
    Statement query(*this, "SELECT coalesce(max(version), 0) FROM migrations");
    AMPD_RETURN_IF_ERROR(query.Step().status());
    version = query.IntAt(0);
  }
  const auto& migrations = SchemaMigrations();
  const int64_t newest = static_cast<int64_t>(migrations.size());
  if (version > newest) {
    return absl::FailedPreconditionError(absl::StrCat(path_, ": schema version ", version,
                                                      " was written by a newer ampd; this one knows up to ", newest));
  }
  if (version == newest) return absl::OkStatus();
  AMPD_RETURN_IF_ERROR(Begin());
  absl::Status status;
  for (int64_t v = version; status.ok() && v < newest; ++v) {
    status = Annotate(MigrateTo(static_cast<int>(v + 1), migrations[v]),
                      absl::StrCat("migration to schema version ", v + 1));
  }
  // Reads jobs as they are from now on.
  if (status.ok() && version < kJobIndexVersion) status = FillJobIndex();
  if (status.ok()) status = Commit();
  if (!status.ok()) Rollback();
  return status;
}

absl::Status Database::MigrateTo(int version, const char* sql) {
  AMPD_RETURN_IF_ERROR(Execute(sql));
  return Statement(*this, "INSERT INTO migrations VALUES(?1, datetime('now'))").Int(version).Run();
}

absl::Status Database::Begin() { return Execute("BEGIN IMMEDIATE"); }
absl::Status Database::Commit() { return Execute("COMMIT"); }
void Database::Rollback() {
  if (sqlite3_get_autocommit(db_) == 0) sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
}

absl::Status Database::Apply(const JobWrite& write) {
  const absl::Status status = ApplyParts(write);
  return absl::IsDataLoss(status) ? Annotate(status, absl::StrCat("job ", write.record.job.id())) : status;
}

absl::Status Database::ApplyParts(const JobWrite& write) {
  uint64_t last_sequence = 0;
  if (write.create) {
    AMPD_RETURN_IF_ERROR(InsertJob(write));
  } else {
    AMPD_ASSIGN_OR_RETURN(last_sequence, LastSequence(write.record.submit_sequence));
  }
  AMPD_RETURN_IF_ERROR(UpdateJob(write.record));
  if (write.new_spec) AMPD_RETURN_IF_ERROR(UpdateSpec(write.record));
  AMPD_RETURN_IF_ERROR(AppendEvents(write, last_sequence));
  return AddToCounters(write.counter_deltas);
}

absl::Status Database::InsertJob(const JobWrite& write) {
  const JobRecord& record = write.record;
  AMPD_RETURN_IF_ERROR(
      Statement(*this,
                "INSERT INTO jobs VALUES(?1, ?2, 0, 0, x'', 0, 0, 0, x'', x'', 0, 0, 0, NULL, 0, NULL, '', ?3, ?4, 0, "
                "x'', '')")
          .Int(record.submit_sequence)
          .Text(record.job.id())
          .Text(record.job.user())
          .Text(absl::StrJoin(record.datasets, ",", absl::PairFormatter("=")))
          .Run());
  AMPD_RETURN_IF_ERROR(Statement(*this, "INSERT INTO job_specs VALUES(?1, ?2, ?3)")
                           .Int(record.submit_sequence)
                           .Blob(record.job.spec().SerializeAsString())
                           .Blob(record.job.plan().SerializeAsString())
                           .Run());
  AMPD_RETURN_IF_ERROR(InsertIntoIndex(record.submit_sequence, record.job));
  if (!write.sweep_id.empty()) AMPD_RETURN_IF_ERROR(InsertSweep(write));
  return write.request_id.empty() ? absl::OkStatus() : InsertRequest(write);
}

absl::Status Database::UpdateSpec(const JobRecord& record) {
  AMPD_RETURN_IF_ERROR(RemoveLabels(record.submit_sequence));
  AMPD_RETURN_IF_ERROR(InsertIntoIndex(record.submit_sequence, record.job));
  return Statement(*this, "UPDATE job_specs SET spec=?2 WHERE sequence=?1")
      .Int(record.submit_sequence)
      .Blob(record.job.spec().SerializeAsString())
      .Run();
}

absl::Status Database::InsertSweep(const JobWrite& write) {
  return Statement(*this, "INSERT INTO sweeps VALUES(?1, ?2, ?3, ?4)")
      .Text(write.sweep_id)
      .Int(write.record.submit_sequence)
      .Int(write.sweep_jobs)
      .Text(write.record.job.user())
      .Run();
}

absl::Status Database::InsertRequest(const JobWrite& write) {
  return Statement(*this, "INSERT INTO requests VALUES(?1, ?2, ?3)")
      .Text(write.request_id)
      .Blob(write.body_hash)
      .Text(write.record.job.id())
      .Run();
}

absl::Status Database::UpdateJob(const JobRecord& record) {
  Statement update(*this,
                   "UPDATE jobs SET state=?2, attempt=?3, job=?4, last_event=?5, worker_pid=?6, worker_start_time=?7, "
                   "token_hash=?8, session_key_hash=?9, worker_number=?10, last_reported_step=?11, run_seconds=?12, "
                   "running_since=?13, lost_attempts=?14, checkpoint_seconds=?15, overtook=?16, cancel_now=?17, "
                   "at_checkpoints=?18, charged=?19 WHERE sequence=?1");
  update.Int(record.submit_sequence)
      .Int(record.job.state())
      .Int(record.job.attempt())
      .Blob(ChangingPart(record.job))
      .Int(static_cast<int64_t>(record.job.last_sequence()))
      .Int(record.worker.pid)
      .Int(static_cast<int64_t>(record.worker.start_time))
      .Blob(record.token_hash)
      .Blob(record.session_key_hash)
      .Int(static_cast<int64_t>(record.worker_number))
      .Int(record.last_reported_step)
      .Real(record.run_seconds);
  if (record.run_counted) {
    update.Int(absl::ToInt64Nanoseconds(*record.run_counted));
  } else {
    update.Null();
  }
  update.Int(record.lost_attempts);
  if (record.checkpoint_time) {
    update.Real(absl::ToDoubleSeconds(*record.checkpoint_time));
  } else {
    update.Null();
  }
  return update.Text(absl::StrJoin(record.overtook, ","))
      .Int(record.cancel_now ? 1 : 0)
      .Blob(SummariesText(record.at_checkpoints))
      .Text(ChargedText(record))
      .Run();
}

absl::Status Database::AppendEvents(const JobWrite& write, uint64_t last_sequence) {
  for (const v1::JobEvent& event : write.events) {
    if (event.first_sequence() != last_sequence + 1 || event.sequence() < event.first_sequence()) {
      return absl::InternalError(absl::StrCat("job ", write.record.job.id(), ": event [", event.first_sequence(), ", ",
                                              event.sequence(), "] does not follow sequence ", last_sequence));
    }
    last_sequence = event.sequence();
    AMPD_RETURN_IF_ERROR(Statement(*this, "INSERT INTO events VALUES(?1, ?2, ?3, ?4, ?5)")
                             .Int(write.record.submit_sequence)
                             .Int(static_cast<int64_t>(event.sequence()))
                             .Int(static_cast<int64_t>(event.first_sequence()))
                             .Int(event.attempt())
                             .Blob(event.SerializeAsString())
                             .Run());
    if (event.has_checkpoint()) AMPD_RETURN_IF_ERROR(InsertCheckpoint(write.record.submit_sequence, event));
  }
  if (last_sequence == write.record.job.last_sequence()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("job ", write.record.job.id(), ": last_sequence ",
                                          write.record.job.last_sequence(), " where the log ends at ", last_sequence));
}

absl::Status Database::InsertCheckpoint(int64_t job, const v1::JobEvent& event) {
  return Statement(*this, "INSERT OR REPLACE INTO checkpoints VALUES(?1, ?2, ?3, ?4, ?5)")
      .Int(job)
      .Text(event.checkpoint().checkpoint())
      .Int(event.checkpoint().step())
      .Int(event.attempt())
      .Int(event.checkpoint().size_bytes())
      .Run();
}

absl::Status Database::AddToCounters(const std::map<std::string, double>& deltas) {
  for (const auto& [name, delta] : deltas) {
    AMPD_RETURN_IF_ERROR(Statement(*this,
                                   "INSERT INTO counters VALUES(?1, ?2) "
                                   "ON CONFLICT(name) DO UPDATE SET value = value + excluded.value")
                             .Text(name)
                             .Real(delta)
                             .Run());
  }
  return absl::OkStatus();
}

absl::Status Database::RemoveCounters(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    AMPD_RETURN_IF_ERROR(Statement(*this, "DELETE FROM counters WHERE name=?1").Text(name).Run());
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Database::LastSequence(int64_t job) const {
  Statement query(*this, "SELECT last_event FROM jobs WHERE sequence=?1");
  AMPD_ASSIGN_OR_RETURN(const bool found, query.Int(job).Step());
  if (!found) return absl::NotFoundError(absl::StrCat("no job with submit sequence ", job));
  return static_cast<uint64_t>(query.IntAt(0));
}

absl::StatusOr<JobRecord> Database::FindJob(absl::string_view prefix, const Owner& owner) const {
  AMPD_ASSIGN_OR_RETURN(const JobLocation location, LocateJob(prefix, owner));
  return RecordOf(location.sequence);
}

absl::StatusOr<JobLocation> Database::LocateJob(absl::string_view prefix, const Owner& owner) const {
  if (!IsIdPrefix(prefix)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", Cut(prefix, 40), "\" is no job id: 26 lower-case letters and digits, or at least the first 4"));
  }
  // Of what is large the lengths are read alone.
  static const std::string& any = *new std::string(
      "SELECT j.id, j.sequence, length(s.spec) + length(s.plan), j.state, i.name FROM jobs j "
      "JOIN job_specs s USING(sequence) JOIN job_index i USING(sequence) WHERE j.id >= ?1 AND j.id < ?2 ");
  static const std::string& sql = *new std::string(absl::StrCat(any, "ORDER BY j.id DESC LIMIT 6"));
  static const std::string& owned = *new std::string(absl::StrCat(any, "AND j.user = ?3 ORDER BY j.id DESC LIMIT 6"));
  Statement query(*this, owner ? owned.c_str() : sql.c_str());
  query.Text(prefix).Text(absl::StrCat(prefix, "~"));
  if (owner) query.Text(*owner);
  JobLocation location;
  std::vector<std::string> candidates;
  while (true) {
    AMPD_ASSIGN_OR_RETURN(const bool more, query.Step());
    if (!more) break;
    const std::string id = query.BytesAt(0);
    const auto state = static_cast<v1::Job::State>(query.IntAt(3));
    if (candidates.empty()) location = {id, query.IntAt(1), query.IntAt(2), state};
    candidates.push_back(absl::StrCat(id, " (", query.BytesAt(4), ", ", v1::Job::State_Name(state), ")"));
  }
  if (candidates.empty()) return absl::NotFoundError(absl::StrCat("no job ", prefix));
  if (candidates.size() > 1) return Ambiguous("jobs", prefix, std::move(candidates));
  return location;
}

absl::StatusOr<SweepRecord> Database::FindSweep(absl::string_view prefix, const Owner& owner) const {
  if (!IsIdPrefix(prefix)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", Cut(prefix, 40), "\" is no sweep's id: 26 lower-case letters and digits, or at least the first 4"));
  }
  Statement query(*this,
                  owner ? "SELECT id, first, jobs FROM sweeps "
                          "WHERE id >= ?1 AND id < ?2 AND user = ?3 ORDER BY id DESC LIMIT 6"
                        : "SELECT id, first, jobs FROM sweeps WHERE id >= ?1 AND id < ?2 ORDER BY id DESC LIMIT 6");
  query.Text(prefix).Text(absl::StrCat(prefix, "~"));
  if (owner) query.Text(*owner);
  AMPD_ASSIGN_OR_RETURN(const bool found, query.Step());
  if (!found) return absl::NotFoundError(absl::StrCat("no sweep ", prefix));
  SweepRecord sweep{query.BytesAt(0), query.IntAt(1), query.IntAt(2)};
  std::vector<std::string> candidates = {sweep.id};
  while (true) {
    AMPD_ASSIGN_OR_RETURN(const bool more, query.Step());
    if (!more) break;
    candidates.push_back(query.BytesAt(0));
  }
  if (candidates.size() > 1) return Ambiguous("sweeps", prefix, std::move(candidates));
  return sweep;
}

absl::StatusOr<std::vector<v1::Job>> Database::SweepJobs(const SweepRecord& sweep) const {
  Statement query(*this, "SELECT job FROM jobs WHERE sequence >= ?1 AND sequence < ?1 + ?2 ORDER BY sequence");
  query.Int(sweep.first).Int(sweep.jobs);
  std::vector<v1::Job> jobs;
  while (true) {
    AMPD_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) return jobs;
    AMPD_RETURN_IF_ERROR(query.ParseAt(0, &jobs.emplace_back()));
  }
}

absl::StatusOr<std::vector<std::string>> Database::SweepJobIds(const SweepRecord& sweep) const {
  Statement query(*this, "SELECT id FROM jobs WHERE sequence >= ?1 AND sequence < ?1 + ?2 ORDER BY sequence");
  query.Int(sweep.first).Int(sweep.jobs);
  std::vector<std::string> ids;
  while (true) {
    AMPD_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) return ids;
    ids.emplace_back(query.BytesAt(0));
  }
}

absl::StatusOr<std::vector<JobRecord>> Database::ActiveJobs() const {
  static const std::string& sql = *new std::string(
      absl::StrCat("SELECT ", kRecordColumns, " FROM jobs j JOIN job_specs s USING(sequence) WHERE j.state < ",
                   static_cast<int>(v1::Job::SUCCEEDED), " ORDER BY j.sequence"));
  Statement query(*this, sql.c_str());
  std::vector<JobRecord> records;
  while (true) {
    AMPD_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) return records;
    AMPD_ASSIGN_OR_RETURN(JobRecord record, RecordAt(query));
    records.push_back(std::move(record));
  }
}

absl::StatusOr<JobRecord> Database::RecordOf(int64_t sequence) const {
  static const std::string& sql = *new std::string(
      absl::StrCat("SELECT ", kRecordColumns, " FROM jobs j JOIN job_specs s USING(sequence) WHERE j.sequence=?1"));
  Statement query(*this, sql.c_str());
  AMPD_ASSIGN_OR_RETURN(const bool found, query.Int(sequence).Step());
  if (!found) return absl::DataLossError(absl::StrCat(path_, ": no job of sequence ", sequence));
  return RecordAt(query);
}

absl::StatusOr<EventPage> Database::ReadEvents(absl::string_view job_id, uint64_t after_sequence, int limit,
                                               size_t max_bytes) const {
  absl::StatusOr<EventPage> page = ReadEventsOf(job_id, after_sequence, limit, max_bytes);
  if (!absl::IsDataLoss(page.status())) return page;
  return Annotate(page.status(), absl::StrCat("job ", job_id, ", events after ", after_sequence));
}

absl::StatusOr<EventPage> Database::ReadEventsOf(absl::string_view job_id, uint64_t after_sequence, int limit,
                                                 size_t max_bytes) const {
  Statement job(*this, "SELECT sequence, last_event FROM jobs WHERE id=?1");
  AMPD_ASSIGN_OR_RETURN(const bool found, job.Text(job_id).Step());
  if (!found) return absl::NotFoundError(absl::StrCat("no job ", job_id));
  EventPage page;
  page.last_sequence = static_cast<uint64_t>(job.IntAt(1));
  if (after_sequence >= page.last_sequence) return page;
  Statement query(*this, "SELECT event FROM events WHERE job=?1 AND sequence>?2 ORDER BY sequence LIMIT ?3");
  query.Int(job.IntAt(0)).Int(static_cast<int64_t>(after_sequence)).Int(limit);
  size_t bytes = 0;
  while (true) {
    AMPD_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) return page;
    bytes += query.SizeAt(0);
    if (bytes > max_bytes && !page.events.empty()) return page;
    AMPD_RETURN_IF_ERROR(query.ParseAt(0, &page.events.emplace_back()));
  }
}

absl::StatusOr<std::optional<RequestRecord>> Database::FindRequest(absl::string_view request_id) const {
  Statement query(*this, "SELECT body_hash, job_id FROM requests WHERE request_id=?1");
  AMPD_ASSIGN_OR_RETURN(const bool found, query.Text(request_id).Step());
  if (!found) return std::optional<RequestRecord>();
  return std::optional<RequestRecord>({query.BytesAt(0), query.BytesAt(1)});
}

absl::StatusOr<std::map<std::string, double>> Database::Counters() const {
  Statement query(*this, "SELECT name, value FROM counters");
  std::map<std::string, double> counters;
  while (true) {
    AMPD_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) return counters;
    counters[query.BytesAt(0)] = query.RealAt(1);
  }
}

absl::StatusOr<std::map<v1::Job::State, int64_t>> Database::JobCounts() const {
  Statement query(*this, "SELECT state, count(*) FROM jobs GROUP BY state");
  std::map<v1::Job::State, int64_t> counts;
  while (true) {
    AMPD_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) return counts;
    counts[static_cast<v1::Job::State>(query.IntAt(0))] = query.IntAt(1);
  }
}

absl::StatusOr<int64_t> Database::LastSubmitSequence() const {
  Statement query(*this, "SELECT coalesce(max(sequence), 0) FROM jobs");
  AMPD_RETURN_IF_ERROR(query.Step().status());
  return query.IntAt(0);
}

absl::StatusOr<std::string> Database::LastJobId() const {
  Statement query(*this, "SELECT id FROM jobs ORDER BY sequence DESC LIMIT 1");
  AMPD_ASSIGN_OR_RETURN(const bool found, query.Step());
  return found ? query.BytesAt(0) : std::string();
}

}  // namespace ampd
