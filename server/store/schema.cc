#include "server/store/schema.h"

namespace ampd {
namespace {

// Specs and plans stand apart from what changes: an UPDATE rewrites a whole row, and a spec may be a mebibyte.
constexpr char kVersion1[] = R"sql(
  CREATE TABLE jobs(
    sequence INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    state INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    job BLOB NOT NULL,
    last_event INTEGER NOT NULL,
    worker_pid INTEGER NOT NULL,
    worker_start_time INTEGER NOT NULL,
    token_hash BLOB NOT NULL,
    session_key_hash BLOB NOT NULL,
    worker_number INTEGER NOT NULL,
    last_reported_step INTEGER NOT NULL,
    run_seconds REAL NOT NULL,
    running_since INTEGER,
    lost_attempts INTEGER NOT NULL);
  CREATE INDEX jobs_by_state ON jobs(state, sequence);
  CREATE TABLE job_specs(
    sequence INTEGER PRIMARY KEY,
    spec BLOB NOT NULL,
    plan BLOB NOT NULL);
  CREATE TABLE events(
    job INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    first_sequence INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    event BLOB NOT NULL,
    PRIMARY KEY(job, sequence)) WITHOUT ROWID;
  CREATE TABLE checkpoints(
    job INTEGER NOT NULL,
    name TEXT NOT NULL,
    step INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL,
    PRIMARY KEY(job, name)) WITHOUT ROWID;
  CREATE TABLE requests(
    request_id TEXT PRIMARY KEY,
    body_hash BLOB NOT NULL,
    job_id TEXT NOT NULL) WITHOUT ROWID;
  CREATE TABLE counters(
    name TEXT PRIMARY KEY,
    value REAL NOT NULL) WITHOUT ROWID;
)sql";

constexpr char kVersion2[] = R"sql(
  -- A device need not be there at present.
  CREATE TABLE device_drains(
    device TEXT PRIMARY KEY,
    reason TEXT NOT NULL,
    time INTEGER NOT NULL,
    stop_jobs INTEGER NOT NULL) WITHOUT ROWID;
  -- A sweep's jobs have consecutive sequences from `first`.
  CREATE TABLE sweeps(
    id TEXT PRIMARY KEY,
    first INTEGER NOT NULL,
    jobs INTEGER NOT NULL,
    user TEXT NOT NULL) WITHOUT ROWID;
  CREATE INDEX sweeps_by_user ON sweeps(user, id);
  -- What jobs are looked for by, apart from what changes with every write. Filled from the jobs, see Database::FillJobIndex.
  CREATE TABLE job_index(
    sequence INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    user TEXT NOT NULL,
    priority INTEGER NOT NULL,
    create_time INTEGER NOT NULL);
  CREATE INDEX job_index_by_name ON job_index(name);
  CREATE INDEX job_index_by_user ON job_index(user);
  CREATE INDEX job_index_by_priority ON job_index(priority);
  CREATE INDEX job_index_by_create_time ON job_index(create_time);
  -- The same for one user's alone, so that no list goes over others' jobs.
  CREATE INDEX job_index_by_user_name ON job_index(user, name);
  CREATE INDEX job_index_by_user_priority ON job_index(user, priority);
  CREATE INDEX job_index_by_user_create_time ON job_index(user, create_time);
  CREATE TABLE job_labels(
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    job INTEGER NOT NULL,
    PRIMARY KEY(key, value, job)) WITHOUT ROWID;
  -- Seconds that a checkpoint of the job took at most, and the waiting jobs that it started ahead of, by id.
  ALTER TABLE jobs ADD COLUMN checkpoint_seconds REAL;
  ALTER TABLE jobs ADD COLUMN overtook TEXT NOT NULL DEFAULT '';
  -- `token` is a Token; no secret is kept.
  CREATE TABLE tokens(
    id TEXT PRIMARY KEY,
    hash BLOB NOT NULL UNIQUE,
    token BLOB NOT NULL) WITHOUT ROWID;
  -- It was in a job's message alone, and empty until there were tokens.
  ALTER TABLE jobs ADD COLUMN user TEXT NOT NULL DEFAULT '';
  -- "NAME=SHA256,...": what the uploaded datasets that it names contained.
  ALTER TABLE jobs ADD COLUMN datasets TEXT NOT NULL DEFAULT '';
  -- Its worker is not to be asked for a checkpoint while it is being cancelled.
  ALTER TABLE jobs ADD COLUMN cancel_now INTEGER NOT NULL DEFAULT 0;
  CREATE INDEX jobs_by_user_state ON jobs(user, state, sequence);
  CREATE INDEX jobs_by_user_id ON jobs(user, id);
)sql";

// Grows until a release has it: a table that is added before then goes here, and needs no fixture of its own. But
// where a database of a revision in use could not be opened, it is a migration as well.
constexpr char kVersion3[] = R"sql(
  -- JobSummary messages, each behind its length.
  ALTER TABLE jobs ADD COLUMN at_checkpoints BLOB NOT NULL DEFAULT x'';
)sql";

// Pages may end with checksums (checksum_vfs.h), which programs of before would leave wrong.
constexpr char kVersion4[] = "-- Nothing but the number.";

constexpr char kVersion5[] = R"sql(
  -- A line each of step, device-seconds, dollars, and what of both was wasted; the first, of step -1, is up to now.
  ALTER TABLE jobs ADD COLUMN charged TEXT NOT NULL DEFAULT '';
)sql";

}  // namespace

const std::vector<const char*>& SchemaMigrations() {
  static const std::vector<const char*>& migrations =
      *new std::vector<const char*>{kVersion1, kVersion2, kVersion3, kVersion4, kVersion5};
  return migrations;
}

}  // namespace ampd
