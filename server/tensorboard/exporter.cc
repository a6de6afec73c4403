#include "server/tensorboard/exporter.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/core/status.h"

namespace ampd {
namespace {

constexpr int kPageEvents = 256;
constexpr int64_t kMaxImageBytes = int64_t{16} << 20;

// A regular file of at most kMaxImageBytes; the name is the worker's.
absl::StatusOr<std::string> ReadImage(const std::string& folder, const std::string& name) {
  if (name.empty() || name[0] == '.' || name.find('/') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("no name of an artifact: ", name));
  }
  const std::string path = absl::StrCat(folder, "/", name);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return absl::Status(absl::ErrnoToStatusCode(errno), absl::StrCat(path, ": ", std::strerror(errno)));
  struct stat info {};
  std::string bytes;
  if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size <= kMaxImageBytes) {
    bytes.resize(static_cast<size_t>(info.st_size));
  }
  const ssize_t n = read(fd, bytes.data(), bytes.size());
  close(fd);
  if (n <= 0 || static_cast<size_t>(n) != bytes.size()) return absl::DataLossError(absl::StrCat(path, ": not read"));
  return bytes;
}

bool IsOver(v1::Job::State state) {
  return state == v1::Job::SUCCEEDED || state == v1::Job::FAILED || state == v1::Job::CANCELLED;
}

}  // namespace

std::string TensorBoardFolder(const v1::Job& job) {
  return absl::StrCat(absl::StrReplaceAll(job.spec().name(), {{" ", "_"}, {"/", "_"}}), "-", job.id());
}

TensorBoardExporter::TensorBoardExporter(Options options, const Clock* clock)
    : options_(std::move(options)), clock_(clock) {}

TensorBoardExporter::~TensorBoardExporter() { Stop(); }

void TensorBoardExporter::Start(EventLog* log) {
  log_ = log;
  thread_ = std::thread([this] { Run(); });
}

void TensorBoardExporter::Stop() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
    news_.clear();
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void TensorBoardExporter::OnWrite(const JobWrite& write) {
  if (write.events.empty()) return;
  const MutexLock lock(&mutex_);
  if (stopping_) return;
  news_.insert(write.record.job.id());
  changed_.NotifyAll();
}

void TensorBoardExporter::Flush() {
  MutexLock lock(&mutex_);
  while (!news_.empty() || busy_) changed_.Wait(&mutex_);
}

std::string TensorBoardExporter::PathOf(const v1::Job& job) const {
  return absl::StrCat(options_.directory, "/", TensorBoardFolder(job), "/events.out.tfevents.",
                      job.create_time().seconds(), ".ampd");
}

void TensorBoardExporter::Run() {
  MutexLock lock(&mutex_);
  for (;;) {
    while (!stopping_ && news_.empty()) {
      if (failed_.empty()) {
        changed_.Wait(&mutex_);
      } else {
        const absl::Duration left = failed_.begin()->first - clock_->Monotonic();
        changed_.WaitUntil(&mutex_, std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(left));
      }
      RetryFailed();
    }
    if (stopping_) return;
    // Others may always have news.
    RetryFailed();
    auto node = news_.extract(news_.begin());
    busy_ = true;
    lock.Unlock();
    const std::string& job_id = node.value();
    Followed& job = jobs_[job_id];
    failed_.erase({job.retry_at, job_id});
    const bool written = Follow(job_id, &job);
    if (!written) failed_.emplace(job.retry_at, job_id);
    if (written && job.ended) jobs_.erase(job_id);
    BoundOpenFiles(job_id);
    lock.Lock();
    busy_ = false;
    changed_.NotifyAll();
  }
}

void TensorBoardExporter::RetryFailed() {
  if (stopping_ || failed_.empty()) return;
  const absl::Duration now = clock_->Monotonic();
  while (!failed_.empty() && failed_.begin()->first <= now) {
    news_.insert(failed_.begin()->second);
    failed_.erase(failed_.begin());
  }
}

bool TensorBoardExporter::Follow(const std::string& job_id, Followed* job) {
  if (clock_->Monotonic() < job->retry_at) return false;
  const absl::Status status = WritePages(job_id, job);
  if (status.ok()) return true;
  job->file.reset();
  job->retry_at = clock_->Monotonic() + options_.retry;
  const std::string error(status.message());
  if (error != job->last_error && options_.log) options_.log(absl::StrCat("TensorBoard file: ", error), {job_id});
  job->last_error = error;
  return false;
}

void TensorBoardExporter::BoundOpenFiles(const std::string& job_id) {
  open_.remove(job_id);
  const auto job = jobs_.find(job_id);
  if (job != jobs_.end() && job->second.file != nullptr && job->second.file->is_open()) open_.push_back(job_id);
  while (open_.size() > options_.max_open_files) {
    jobs_.at(open_.front()).file->Close();
    open_.pop_front();
  }
}

absl::Status TensorBoardExporter::Prepare(const std::string& job_id, Followed* job) {
  if (job->summaries == nullptr) {
    AMPD_ASSIGN_OR_RETURN(const v1::Job found, options_.find_job(job_id));
    job->path = PathOf(found);
    auto read = [folder = absl::StrCat(options_.artifact_root, "/", job_id)](const std::string& name) {
      return ReadImage(folder, name);
    };
    job->summaries = std::make_unique<Summaries>(found.spec(), std::move(read));
  }
  if (job->file != nullptr) return absl::OkStatus();
  AMPD_ASSIGN_OR_RETURN(job->file, EventFile::Open(job->path));
  return absl::OkStatus();
}

absl::Status TensorBoardExporter::WritePages(const std::string& job_id, Followed* job) {
  AMPD_RETURN_IF_ERROR(Prepare(job_id, job));
  for (;;) {
    AMPD_ASSIGN_OR_RETURN(const EventPage page, log_->Read(job_id, job->file->sequence(), kPageEvents));
    if (page.events.empty()) return absl::OkStatus();
    std::vector<tensorboard::Event> events;
    for (const v1::JobEvent& event : page.events) {
      for (tensorboard::Event& made : job->summaries->Of(event)) events.push_back(std::move(made));
      if (event.has_state_change() && IsOver(event.state_change().to())) job->ended = true;
    }
    AMPD_RETURN_IF_ERROR(job->file->Append(std::move(events), page.events.back().sequence()));
  }
}

}  // namespace ampd
