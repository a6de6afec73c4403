// Removes folders on a thread of its own, for whoever must not wait for the disk.
#ifndef AMPD_SERVER_FILES_FOLDER_REMOVER_H_
#define AMPD_SERVER_FILES_FOLDER_REMOVER_H_

#include <deque>
#include <string>
#include <thread>

#include "engine/core/mutex.h"

namespace ampd {

// Thread safe.
class FolderRemover {
 public:
  FolderRemover() : thread_([this] { Run(); }) {}
  // What was not removed yet stays.
  ~FolderRemover();
  FolderRemover(const FolderRemover&) = delete;
  FolderRemover& operator=(const FolderRemover&) = delete;

  // Removes the folder with all that is in it, before long. Does not block. Nobody else is to use its name any more.
  void Remove(std::string path);

  // Waits until everything before the call is removed, as far as that can be.
  void Flush();

 private:
  void Run();

  Mutex mutex_;
  CondVar changed_;
  // The first of them is being removed.
  std::deque<std::string> paths_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Last: it uses the others. Started at once, so that want of threads later costs nobody who removes.
  std::thread thread_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_FILES_FOLDER_REMOVER_H_
