// Room in the file system of the state directory: how much there is, and whether it is enough for jobs to start.
#ifndef AMPD_SERVER_MAIN_DISK_WATCH_H_
#define AMPD_SERVER_MAIN_DISK_WATCH_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "engine/core/mutex.h"

namespace ampd {

// Bytes that this user, root or not, can still write beneath `directory`; empty where that cannot be told.
std::optional<int64_t> FreeBytes(const std::string& directory);

// Not thread-safe.
class SpaceJudge {
 public:
  // `min_free_bytes`: ServerConfig's; 0: there is always room.
  explicit SpaceJudge(int64_t min_free_bytes) : min_free_bytes_(min_free_bytes) {}

  // What is wrong with so much room, in words; empty: it is enough. Once it was too little it is enough again with a
  // quarter more than the least: what has just become free is soon written. Unknown (empty): as it was found last.
  std::string Look(std::optional<int64_t> free_bytes);

 private:
  const int64_t min_free_bytes_;
  std::string shortage_;
};

// What a SpaceJudge said last, for whoever asks. Thread safe.
class SpaceReport {
 public:
  void Set(std::string shortage) {
    const MutexLock lock(&mutex_);
    shortage_ = std::move(shortage);
  }
  // In words; empty: there is room.
  std::string Get() const {
    const MutexLock lock(&mutex_);
    return shortage_;
  }

 private:
  mutable Mutex mutex_;
  std::string shortage_ ABSL_GUARDED_BY(mutex_);
};

// One thread, which looks after each period.
class DiskWatch {
 public:
  struct Options {
    std::string directory;
    absl::Duration period = absl::Seconds(1);
    // Told what SpaceJudge says whenever that changes; on the watch's thread. It must not block.
    std::function<void(const std::string& shortage)> report;
    // Told, in words, when room runs short and when there is enough again.
    std::function<void(const std::string&)> log;
  };

  // `judge` must outlive this, and is this one's alone; what it said last is taken for known.
  DiskWatch(Options options, SpaceJudge* judge);
  ~DiskWatch();
  DiskWatch(const DiskWatch&) = delete;
  DiskWatch& operator=(const DiskWatch&) = delete;

 private:
  void Run();
  void Look();

  const Options options_;
  SpaceJudge* const judge_;
  // Used by the thread alone.
  std::string told_;
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_MAIN_DISK_WATCH_H_
