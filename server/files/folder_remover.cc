#include "server/files/folder_remover.h"

#include <filesystem>
#include <system_error>
#include <utility>

namespace ampd {

FolderRemover::~FolderRemover() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void FolderRemover::Remove(std::string path) {
  const MutexLock lock(&mutex_);
  paths_.push_back(std::move(path));
  changed_.NotifyAll();
}

void FolderRemover::Flush() {
  MutexLock lock(&mutex_);
  while (!paths_.empty()) changed_.Wait(&mutex_);
}

void FolderRemover::Run() {
  MutexLock lock(&mutex_);
  for (;;) {
    while (!stopping_ && paths_.empty()) changed_.Wait(&mutex_);
    if (stopping_) return;
    const std::string path = paths_.front();
    lock.Unlock();
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
    lock.Lock();
    paths_.pop_front();
    changed_.NotifyAll();
  }
}

}  // namespace ampd
