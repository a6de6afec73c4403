#include "server/main/disk_watch.h"

#include <sys/statvfs.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ampd {

std::optional<int64_t> FreeBytes(const std::string& directory) {
  struct statvfs info {};
  if (statvfs(directory.c_str(), &info) != 0) return std::nullopt;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

std::string SpaceJudge::Look(std::optional<int64_t> free_bytes) {
  if (!free_bytes) return shortage_;
  const int64_t enough = min_free_bytes_ + min_free_bytes_ / 4;
  const bool is_short = *free_bytes < (shortage_.empty() ? min_free_bytes_ : enough);
  shortage_ = !is_short ? ""
                        : absl::StrCat("the state directory has ", *free_bytes, " bytes of room, less than ",
                                       min_free_bytes_, " (min_free_bytes); jobs start again with ", enough);
  return shortage_;
}

DiskWatch::DiskWatch(Options options, SpaceJudge* judge)
    : options_(std::move(options)), judge_(judge), told_(judge->Look(std::nullopt)), thread_([this] { Run(); }) {}

DiskWatch::~DiskWatch() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  thread_.join();
}

void DiskWatch::Run() {
  while (true) {
    Look();
    const MutexLock lock(&mutex_);
    const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(options_.period);
    while (!stopping_ && wake_.WaitUntil(&mutex_, deadline)) {
    }
    if (stopping_) return;
  }
}

void DiskWatch::Look() {
  std::string shortage = judge_->Look(FreeBytes(options_.directory));
  if (shortage == told_) return;
  if (shortage.empty() != told_.empty() && options_.log) {
    options_.log(shortage.empty() ? "the state directory has room again" : shortage);
  }
  told_ = std::move(shortage);
  options_.report(told_);
}

}  // namespace ampd
