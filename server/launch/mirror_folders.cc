#include "server/launch/mirror_folders.h"

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"
#include "server/files/file_sharing.h"
#include "server/files/files.h"

namespace ampd {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Causes may name files, of which there are any number.
constexpr size_t kMaxTold = 100;

}  // namespace

struct MirrorFolders::State {
  struct Asked {
    std::string job_id;
    uint32_t attempt;
  };

  explicit State(Options given) : options(std::move(given)) {}

  // What is to be tried next; nullopt: the end.
  std::optional<std::vector<Asked>> AwaitPass();
  // False: it need not be tried.
  bool Begin(const Asked& job);
  void End(const Asked& job, const absl::Status& status, const std::vector<std::string>& notes);
  void Tell(const std::string& text) const {
    if (options.log) options.log(text);
  }

  const Options options;
  Mutex mutex;
  CondVar wake;
  // By id, the attempts whose folders are still to be given, and the mirror itself. Of a worker that another daemon
  // launched nobody says that it has ended: where all fails until then it is tried to the end.
  std::map<std::string, uint32_t> jobs ABSL_GUARDED_BY(mutex);
  // One of them was added since the last pass over them began.
  bool asked ABSL_GUARDED_BY(mutex) = false;
  bool ended ABSL_GUARDED_BY(mutex) = false;
  // Since when the one that is tried is.
  std::optional<SteadyClock::time_point> busy_since ABSL_GUARDED_BY(mutex);
  bool told_of_hang ABSL_GUARDED_BY(mutex) = false;
  // Causes of failures that were logged, since nothing failed.
  std::set<std::string> told ABSL_GUARDED_BY(mutex);
  std::set<std::string> noted ABSL_GUARDED_BY(mutex);
};

std::optional<std::vector<MirrorFolders::State::Asked>> MirrorFolders::State::AwaitPass() {
  const auto retry_at = SteadyClock::now() + absl::ToChronoMilliseconds(options.period);
  const MutexLock lock(&mutex);
  bool due = false;
  while (!ended && (jobs.empty() || !(asked || due))) {
    if (jobs.empty()) {
      wake.Wait(&mutex);
    } else {
      due = !wake.WaitUntil(&mutex, retry_at);
    }
  }
  if (ended) return std::nullopt;
  asked = false;
  std::vector<Asked> pass;
  for (const auto& [job_id, attempt] : jobs) pass.push_back({job_id, attempt});
  return pass;
}

bool MirrorFolders::State::Begin(const Asked& job) {
  const MutexLock lock(&mutex);
  const auto found = jobs.find(job.job_id);
  if (ended || found == jobs.end() || found->second != job.attempt) return false;
  busy_since = SteadyClock::now();
  return true;
}

void MirrorFolders::State::End(const Asked& job, const absl::Status& status, const std::vector<std::string>& notes) {
  const MutexLock lock(&mutex);
  busy_since.reset();
  if (ended) return;
  if (std::exchange(told_of_hang, false)) Tell("mirror_dir answers again");
  for (const std::string& note : notes) {
    if (noted.size() < kMaxTold && noted.insert(note).second) Tell(note);
  }
  const auto found = jobs.find(job.job_id);
  if (status.ok()) {
    if (found != jobs.end() && found->second == job.attempt) jobs.erase(found);
    if (!jobs.empty() || told.empty()) return;
    told.clear();
    return Tell("mirror_dir: the folders of all jobs that run are the workers' now");
  }
  std::string cause(status.message());
  if (!job.job_id.empty()) cause = absl::StrReplaceAll(cause, {{job.job_id, "JOB"}});
  if (told.size() == kMaxTold || !told.insert(cause).second) return;
  Tell(absl::StrCat("mirror_dir: workers cannot write there yet, which stops no job: ", status.message()));
}

MirrorFolders::MirrorFolders(Options options) : state_(std::make_shared<State>(std::move(options))) {
  Ask("", 0);
  std::thread([state = state_] { Run(*state); }).detach();
}

MirrorFolders::~MirrorFolders() {
  const MutexLock lock(&state_->mutex);
  state_->ended = true;
  state_->wake.NotifyAll();
}

void MirrorFolders::Run(State& state) {
  while (const auto pass = state.AwaitPass()) {
    for (const State::Asked& job : *pass) {
      if (!state.Begin(job)) continue;
      std::vector<std::string> notes;
      const absl::Status status = state.options.give(job.job_id, &notes);
      state.End(job, status, notes);
    }
  }
}

void MirrorFolders::Ask(const std::string& job_id, uint32_t attempt) {
  const MutexLock lock(&state_->mutex);
  state_->jobs[job_id] = attempt;
  state_->asked = true;
  state_->wake.NotifyAll();
  const absl::Duration patience = state_->options.patience;
  const bool hangs = state_->busy_since && absl::FromChrono(SteadyClock::now() - *state_->busy_since) >= patience;
  if (!hangs || std::exchange(state_->told_of_hang, true)) return;
  state_->Tell(absl::StrCat("mirror_dir has not answered for ", absl::FormatDuration(patience),
                            ": workers start without folders of their own there until it does"));
}

void MirrorFolders::Forget(const std::string& job_id, uint32_t attempt) {
  const MutexLock lock(&state_->mutex);
  const auto found = state_->jobs.find(job_id);
  if (found != state_->jobs.end() && found->second == attempt) state_->jobs.erase(found);
}

MirrorFolders::Give GiveIn(std::string root, const WorkerAccount& account) {
  return [root = std::move(root), account](const std::string& job_id, std::vector<std::string>* notes) -> absl::Status {
    const FileSharing worker(account.uid, account.gid);
    // Each time: another file system may have been mounted there.
    AMPD_RETURN_IF_ERROR(MakeFolder(root));
    AMPD_RETURN_IF_ERROR(worker.LetPass(root));
    if (!job_id.empty()) {
      const std::string folder = absl::StrCat(root, "/", job_id);
      AMPD_RETURN_IF_ERROR(MakeFolder(folder));
      AMPD_RETURN_IF_ERROR(worker.Give(folder));
    }
    for (const std::string& above : FoldersThatKeepOut(account, root)) {
      notes->push_back(absl::StrCat("worker_user: the mode of ", above, " keeps it out of ", root));
    }
    return absl::OkStatus();
  };
}

}  // namespace ampd
