#include "server/main/upkeep.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "server/files/files.h"
#include "server/jobs/job_state.h"
#include "server/service/start_source.h"
#include "server/tensorboard/exporter.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;

constexpr int kPage = 100;
// Looked at in one transaction: some milliseconds.
constexpr int kEvents = 1000;
// No job's folder of TensorBoard begins so: '~' is in no name.
constexpr char kRemoving[] = ".removing~";
// As workers name what they write: engine/train/checkpoint.cc and checkpoint_mirror.cc.
constexpr absl::string_view kUnfinished[] = {".writing-", ".copying-"};
// A wall clock that ran ahead by more than the first is not believed for the second.
constexpr absl::Duration kClockJump = absl::Hours(1);
constexpr absl::Duration kDoubt = absl::Hours(24);
// A counter of the store: when the clock was last in no doubt, in seconds since 1970.
constexpr char kTrusted[] = "upkeep_trusted_unix_seconds";

absl::Time TimeOf(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

absl::Time EndOf(const v1::Job& job) { return TimeOf(job.end_time()); }

std::string InSeconds(absl::Duration duration) { return absl::FormatDuration(absl::Trunc(duration, absl::Seconds(1))); }

fs::path AsidePath(const std::string& root, const std::string& name) { return fs::path(root) / (kRemoving + name); }

std::string Ago(int64_t days) { return absl::StrCat("the job ended more than ", days, " days ago"); }

std::vector<std::string> NamesBeginningWith(absl::string_view prefix, const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (absl::StartsWith(name, prefix)) names.push_back(std::move(name));
  }
  return names;
}

void RemoveBeginningWith(absl::string_view prefix, const std::string& folder) {
  std::error_code error;
  for (const std::string& name : NamesBeginningWith(prefix, folder)) fs::remove_all(fs::path(folder) / name, error);
}

}  // namespace

Upkeep::Upkeep(Options options, Store* store, const Clock* clock)
    : options_(std::move(options)), store_(store), clock_(clock) {}

void Upkeep::Begin() {
  thread_ = std::thread([this] { Run(); });
}

void Upkeep::Stop() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void Upkeep::JobIsOver(const std::string& job_id) {
  const MutexLock lock(&mutex_);
  over_.insert(job_id);
  wake_.NotifyAll();
}

bool Upkeep::stopping() {
  const MutexLock lock(&mutex_);
  return stopping_;
}

void Upkeep::Run() {
  while (!stopping()) {
    if (const absl::Status status = Sweep(); !status.ok()) options_.log(absl::StrCat("upkeep: ", status.message()), {});
    if (options_.on_pass) options_.on_pass();
    AwaitPass();
  }
}

void Upkeep::AwaitPass() {
  const auto after = [](absl::Duration wait) {
    return std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(wait);
  };
  const auto deadline = after(options_.period);
  while (true) {
    std::set<std::string> jobs;
    {
      const MutexLock lock(&mutex_);
      const auto wake_at = has_worker_.empty() ? deadline : std::min(deadline, after(options_.worker_period));
      while (!stopping_ && over_.empty() && wake_.WaitUntil(&mutex_, wake_at)) {
      }
      if (stopping_) return;
      jobs.swap(over_);
    }
    jobs.merge(std::exchange(has_worker_, {}));
    for (const std::string& job_id : jobs) {
      if (stopping()) return;
      RemoveLeftovers(job_id);
    }
    if (!jobs.empty() && options_.on_pass) options_.on_pass();
    if (std::chrono::steady_clock::now() >= deadline) return;
  }
}

// What is removed for its age is gone for good, and a clock may be set wrong by mistake, also while the machine is off.
absl::Status Upkeep::LookAtClock() {
  // Until the clock has been looked at.
  now_ = absl::InfinitePast();
  const absl::Time wall = clock_->Now();
  // A machine that was suspended has no clock in doubt.
  const absl::Duration since_boot = clock_->SinceBoot(), ahead = wall - absl::UnixEpoch() - since_boot;
  if (!ahead_) {
    const absl::Duration age = ShortestAge();
    absl::Time known = absl::InfinitePast();
    if (age != absl::InfiniteDuration()) {
      AMPD_ASSIGN_OR_RETURN(known, TrustedTime());
      if (known == absl::InfinitePast()) {
        AMPD_ASSIGN_OR_RETURN(known, LastKnownTime(wall - age));
      }
    }
    // A new state directory has nothing to lose.
    if (known != absl::InfinitePast() && wall - known > age) {
      Doubt(since_boot,
            absl::StrCat("the clock is ", InSeconds(wall - known), " ahead of when it was last known to be right"));
    }
  } else if (ahead - *ahead_ > kClockJump) {
    Doubt(since_boot, absl::StrCat("the clock went ahead by ", InSeconds(ahead - *ahead_)));
  } else if (*ahead_ - ahead > kClockJump) {
    // Put right again.
    doubted_until_ = absl::ZeroDuration();
  }
  ahead_ = ahead;
  if (since_boot >= doubted_until_) {
    now_ = wall;
    Trust(wall);
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Time> Upkeep::TrustedTime() const {
  AMPD_ASSIGN_OR_RETURN(const auto counters,
                        store_->Await([](const Database& database) { return database.Counters(); }));
  const auto found = counters.find(kTrusted);
  return found == counters.end() ? absl::InfinitePast()
                                 : absl::UnixEpoch() + absl::Seconds(static_cast<int64_t>(found->second));
}

void Upkeep::Trust(absl::Time wall) {
  if (ShortestAge() == absl::InfiniteDuration()) return;
  const auto seconds = static_cast<double>(absl::ToUnixSeconds(wall));
  // What cannot be written now is with the next pass.
  store_->Change(
      [seconds](Database& database) -> absl::Status {
        AMPD_RETURN_IF_ERROR(database.RemoveCounters({kTrusted}));
        return database.AddToCounters({{kTrusted, seconds}});
      },
      [](const absl::Status&) {});
}

void Upkeep::Doubt(absl::Duration since_boot, const std::string& why) {
  doubted_until_ = since_boot + kDoubt;
  options_.log(absl::StrCat("upkeep: ", why, "; nothing is removed for its age for ", absl::FormatDuration(kDoubt)),
               {});
}

absl::Duration Upkeep::ShortestAge() const {
  const v1::ServerConfig::Retention& retention = options_.retention;
  absl::Duration shortest = absl::InfiniteDuration();
  for (const int64_t days :
       {retention.checkpoint_days(), retention.file_days(), retention.event_days(), retention.upload_days()}) {
    if (days > 0) shortest = std::min(shortest, absl::Hours(24 * days));
  }
  return shortest;
}

absl::StatusOr<bool> Upkeep::EachJob(absl::FunctionRef<absl::StatusOr<bool>(const v1::Job&)> visit) {
  JobQuery query;
  query.page_size = kPage;
  do {
    AMPD_ASSIGN_OR_RETURN(const JobPage page,
                          store_->Await([&](const Database& database) { return database.ListJobs(query); }));
    for (const v1::Job& job : page.jobs) {
      if (stopping()) return false;
      AMPD_ASSIGN_OR_RETURN(const bool go_on, visit(job));
      if (!go_on) return false;
    }
    query.page_token = page.next_page_token;
  } while (!query.page_token.empty());
  return true;
}

absl::StatusOr<absl::Time> Upkeep::LastKnownTime(absl::Time enough) {
  absl::Time last = absl::InfinitePast();
  AMPD_RETURN_IF_ERROR(EachJob([&](const v1::Job& job) -> absl::StatusOr<bool> {
                         AMPD_ASSIGN_OR_RETURN(const absl::Time time, LastTimeOf(job));
                         last = std::max(last, time);
                         return last < enough;
                       }).status());
  return stopping() ? enough : last;
}

absl::StatusOr<absl::Time> Upkeep::LastTimeOf(const v1::Job& job) const {
  absl::Time last = absl::InfinitePast();
  for (const auto* time : {&job.create_time(), &job.end_time()}) {
    if (time->seconds() != 0) last = std::max(last, TimeOf(*time));
  }
  if (IsTerminal(job.state()) || job.last_sequence() == 0) return last;
  AMPD_ASSIGN_OR_RETURN(const EventPage page, store_->Await([&](const Database& database) {
    return database.ReadEvents(job.id(), job.last_sequence() - 1, 1);
  }));
  for (const v1::JobEvent& event : page.events) {
    if (event.has_time()) last = std::max(last, TimeOf(event.time()));
  }
  return last;
}

absl::Status Upkeep::Sweep() {
  RemoveAllAside();
  AMPD_RETURN_IF_ERROR(LookAtClock());
  std::vector<Kept> kept;
  std::set<std::string> unused = UnusedUploads();
  AMPD_ASSIGN_OR_RETURN(const bool all, EachJob([&](const v1::Job& job) -> absl::StatusOr<bool> {
                          const absl::Status status = LookAfter(job, &kept, &unused);
                          if (!status.ok()) options_.log(absl::StrCat("upkeep: ", status.message()), {job.id()});
                          return true;
                        }));
  if (!all) return absl::OkStatus();
  RemoveUploads(unused);
  RemoveCheckpoints(std::move(kept));
  return absl::OkStatus();
}

absl::Status Upkeep::LookAfter(const v1::Job& job, std::vector<Kept>* kept, std::set<std::string>* unused) {
  const bool ended = IsTerminal(job.state());
  if (ended) {
    RemoveLeftovers(job.id());
    RemoveFiles(job);
  }
  const int64_t bytes = ended ? CheckpointBytes(job.id()) : 0;
  // Copies stay alone where the mirror was away when the checkpoints went, or where their disk was lost.
  const bool has_checkpoints = ended && (bytes > 0 || HasCopies(job.id()));
  if (has_checkpoints) kept->push_back({EndOf(job), job.id(), bytes});
  // Who trains, resumes or exports it reads the model again.
  if (!ended || has_checkpoints) {
    for (const std::string& checksum : UploadsOf(job.spec())) unused->erase(checksum);
  }
  return MergeEvents(job);
}

absl::Status Upkeep::MergeEvents(const v1::Job& job) {
  const v1::ServerConfig::Retention& retention = options_.retention;
  const bool ended = IsTerminal(job.state());
  const auto merged = merged_.find(job.id());
  // A job that was retried has ended anew since.
  if (ended && merged != merged_.end() && merged->second == EndOf(job)) return absl::OkStatus();
  const absl::Duration age = now_ - EndOf(job);
  if (ended && retention.event_days() > 0 && age > absl::Hours(24 * retention.event_days())) {
    AMPD_RETURN_IF_ERROR(MergeUntil(job.id(), 0, /*once=*/false));
    merged_[job.id()] = EndOf(job);
    return absl::OkStatus();
  }
  const int64_t keep = retention.step_reports();
  if (keep == 0 || static_cast<int64_t>(job.last_sequence()) <= 2 * keep) return absl::OkStatus();
  AMPD_ASSIGN_OR_RETURN(const int64_t events,
                        store_->Await([&](const Database& database) { return CountEvents(database, job.id()); }));
  return events > 2 * keep ? MergeUntil(job.id(), keep, /*once=*/true) : absl::OkStatus();
}

// `once`: every pair of neighbours; else until none is left.
absl::Status Upkeep::MergeUntil(const std::string& job_id, int64_t keep, bool once) {
  MergePass pass;
  int64_t merged = 0;
  while (!stopping()) {
    AMPD_ASSIGN_OR_RETURN(pass, MergeNext(job_id, pass.after_sequence, keep));
    merged += pass.merged;
    if (pass.after_sequence != 0) continue;
    if (once || merged == 0) break;
    merged = 0;
  }
  return absl::OkStatus();
}

// Most often, as with each start of the daemon, there is nothing left to merge: that is found beside the writer, and
// without a commit.
absl::StatusOr<MergePass> Upkeep::MergeNext(const std::string& job_id, uint64_t after_sequence, int64_t keep) {
  AMPD_ASSIGN_OR_RETURN(MergePass pass, store_->Await([&](const Database& database) {
    return LookForOldReports(database, job_id, after_sequence, keep, kEvents);
  }));
  if (pass.merged == 0) return pass;
  std::promise<absl::Status> done;
  store_->Change(
      [&](Database& database) -> absl::Status {
        AMPD_ASSIGN_OR_RETURN(pass, MergeOldReports(database, job_id, after_sequence, keep, kEvents));
        return absl::OkStatus();
      },
      [&done](const absl::Status& status) { done.set_value(status); });
  AMPD_RETURN_IF_ERROR(done.get_future().get());
  return pass;
}

void Upkeep::RemoveLeftovers(const std::string& job_id) {
  std::vector<Folder> left;
  for (const std::string& root : {options_.checkpoint_root, options_.mirror_root}) {
    if (root.empty()) continue;
    const std::string folder = absl::StrCat(root, "/", job_id);
    RemoveBeginningWith(kRemoving, folder);
    for (const absl::string_view prefix : kUnfinished) {
      for (std::string& name : NamesBeginningWith(prefix, folder)) {
        left.push_back({folder, std::move(name), root == options_.mirror_root});
      }
    }
  }
  if (left.empty()) return;
  const absl::StatusOr<JobRecord> record =
      store_->Await([&](const Database& database) { return database.FindJob(job_id); });
  if (!record.ok() || !IsTerminal(record->job.state())) return;
  if (options_.has_worker && options_.has_worker(*record)) {
    has_worker_.insert(job_id);
    return;
  }
  // It may train again by now, and write one of the same name.
  if (!SetAside(job_id, EndOf(record->job), left)) return;
  for (const Folder& folder : left) RemoveAside(folder);
}

int64_t Upkeep::CheckpointBytes(const std::string& job_id) const {
  std::error_code error;
  int64_t bytes = 0;
  const std::string folder = absl::StrCat(options_.checkpoint_root, "/", job_id);
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code unreadable;
    const uintmax_t size = it->is_regular_file(unreadable) ? it->file_size(unreadable) : 0;
    if (!unreadable) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

bool Upkeep::HasCopies(const std::string& job_id) const {
  if (options_.mirror_root.empty()) return false;
  std::error_code error;
  return fs::directory_iterator(absl::StrCat(options_.mirror_root, "/", job_id), error) != fs::directory_iterator();
}

absl::Time Upkeep::UploadCutoff() const {
  const int64_t days = options_.retention.upload_days();
  return options_.uploads == nullptr || days == 0 ? absl::InfinitePast() : now_ - absl::Hours(24 * days);
}

std::set<std::string> Upkeep::UnusedUploads() const {
  const absl::Time cutoff = UploadCutoff();
  if (cutoff == absl::InfinitePast()) return {};
  return options_.uploads->UnusedSince(cutoff);
}

void Upkeep::RemoveUploads(const std::set<std::string>& uploads) const {
  if (uploads.empty()) return;
  for (const std::string& checksum : options_.uploads->RemoveUnused(uploads, UploadCutoff())) {
    options_.log(absl::StrCat("upload ", checksum, ": removed: no job needs it, and none was submitted with it for ",
                              options_.retention.upload_days(), " days"),
                 {});
  }
}

void Upkeep::RemoveFiles(const v1::Job& job) {
  const int64_t days = options_.retention.file_days();
  if (days == 0 || now_ - EndOf(job) <= absl::Hours(24 * days)) return;
  std::vector<Folder> folders = {{options_.tensorboard_root, TensorBoardFolder(job)}};
  for (const std::string& root : options_.file_roots) folders.push_back({root, job.id()});
  Remove(job.id(), EndOf(job), folders, "artifacts, logs and TensorBoard file", Ago(days));
}

void Upkeep::RemoveCheckpoints(std::vector<Kept> kept) {
  const v1::ServerConfig::Retention& retention = options_.retention;
  std::sort(kept.begin(), kept.end(), [](const Kept& a, const Kept& b) { return a.ended < b.ended; });
  int64_t bytes = 0;
  for (const Kept& job : kept) bytes += job.bytes;
  for (const Kept& job : kept) {
    if (stopping()) return;
    const int64_t days = retention.checkpoint_days(), bound = retention.checkpoint_bytes();
    std::string why;
    if (days > 0 && now_ - job.ended > absl::Hours(24 * days)) {
      why = Ago(days);
    } else if (bound > 0 && bytes > bound) {
      why = absl::StrCat("those of ended jobs take ", bytes, " bytes of ", bound);
    } else {
      continue;
    }
    Remove(job.job_id, job.ended,
           {{options_.checkpoint_root, job.job_id}, {options_.mirror_root, job.job_id, /*may_hang=*/true}},
           job.bytes > 0 ? "checkpoints" : "checkpoints' copies", why);
    bytes -= job.bytes;
  }
}

// What jobs start from has links of its own.
void Upkeep::Remove(const std::string& job_id, absl::Time ended, const std::vector<Folder>& folders,
                    const std::string& what, const std::string& why) {
  std::vector<Folder> there;
  for (const Folder& folder : folders) {
    std::error_code error;
    if (!folder.root.empty() && fs::exists(fs::path(folder.root) / folder.name, error)) there.push_back(folder);
  }
  if (there.empty() || !SetAside(job_id, ended, there)) return;
  bool removed = true;
  for (const Folder& folder : there) removed = RemoveAside(folder) && removed;
  if (removed) options_.log(absl::StrCat("removed its ", what, ": ", why), {job_id});
}

// Renamed, so that none is ever found in part; on the thread that writes, so that a job that starts again finds its
// folders or makes new ones, and loses none. That thread must not wait for a mirror that hangs: its copies may be those
// of a job that starts in that moment, which are made anew with its next checkpoint.
bool Upkeep::SetAside(const std::string& job_id, absl::Time ended, const std::vector<Folder>& folders) {
  std::promise<bool> done;
  store_->ReadInOrder([&](const Database& database) {
    const absl::StatusOr<JobRecord> record = database.FindJob(job_id);
    const bool is_same = record.ok() && IsTerminal(record->job.state()) && EndOf(record->job) == ended;
    for (const Folder& folder : folders) {
      if (is_same && !folder.may_hang) Rename(job_id, folder);
    }
    done.set_value(is_same);
  });
  if (!done.get_future().get()) return false;
  for (const Folder& folder : folders) {
    if (folder.may_hang) Rename(job_id, folder);
  }
  return true;
}

void Upkeep::Rename(const std::string& job_id, const Folder& folder) const {
  std::error_code error;
  fs::rename(fs::path(folder.root) / folder.name, AsidePath(folder.root, folder.name), error);
  if (!error) return;
  options_.log(absl::StrCat("upkeep: cannot rename ", folder.root, "/", folder.name, ": ", error.message()), {job_id});
}

bool Upkeep::RemoveAside(const Folder& folder) const {
  const fs::path aside = AsidePath(folder.root, folder.name);
  std::error_code error;
  // It could not be renamed.
  if (!fs::exists(aside, error)) return false;
  // What is on disk under its own name must not be there in part.
  absl::Status status = SyncFolder(folder.root);
  if (status.ok()) fs::remove_all(aside, error);
  if (status.ok() && error) status = FileError(aside.string(), error.value());
  if (!status.ok()) options_.log(absl::StrCat("upkeep: cannot remove yet: ", status.message()), {});
  return status.ok();
}

// What was begun, by this daemon or one before.
void Upkeep::RemoveAllAside() const {
  std::vector<std::string> roots = options_.file_roots;
  for (const std::string& root : {options_.checkpoint_root, options_.mirror_root, options_.tensorboard_root}) {
    if (!root.empty()) roots.push_back(root);
  }
  for (const std::string& root : roots) RemoveBeginningWith(kRemoving, root);
}

}  // namespace ampd
