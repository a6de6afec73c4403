// The damaged pages of a database that were read.
#ifndef AMPD_SERVER_STORE_DAMAGE_BOOK_H_
#define AMPD_SERVER_STORE_DAMAGE_BOOK_H_

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "engine/core/mutex.h"
#include "server/store/checksum_vfs.h"

namespace ampd {

// Thread-safe.
class DamageBook {
 public:
  // `log`, which may be null, is told of each page of the file `path` once.
  DamageBook(std::string path, std::function<void(const std::string&)> log)
      : path_(std::move(path)), log_(std::move(log)) {}

  void Note(const DamagedPage& page);
  // So many different ones.
  int64_t pages() const;

 private:
  const std::string path_;
  const std::function<void(const std::string&)> log_;
  mutable Mutex mutex_;
  std::set<uint32_t> pages_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ampd

#endif  // AMPD_SERVER_STORE_DAMAGE_BOOK_H_
