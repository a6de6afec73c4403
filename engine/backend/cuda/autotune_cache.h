// Which of a library's algorithms is fastest for one op of one shape on one device, measured once: kept in memory and,
// where there is a directory for it, in a file that later processes read.
#ifndef AMPD_ENGINE_BACKEND_CUDA_AUTOTUNE_CACHE_H_
#define AMPD_ENGINE_BACKEND_CUDA_AUTOTUNE_CACHE_H_

#include <cstdint>
#include <list>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace ampd::cuda {

// Thread-compatible. Any number of processes may share a directory: each write keeps what the others wrote.
class AutotuneCache {
 public:
  // The oldest entries make room. A longer key or value is kept by nobody.
  static constexpr int kMaxEntries = 4096;
  static constexpr int64_t kMaxKeyBytes = 1024;
  static constexpr int64_t kMaxValueBytes = 4096;
  // A larger file is not read.
  static constexpr int64_t kMaxFileBytes = 16 << 20;
  static constexpr char kFileName[] = "autotune.txt";

  // Reads `directory`/autotune.txt, or keeps to memory if `directory` is empty. A file that is not there or is not
  // one of these is an empty cache; of a damaged one, the whole lines count.
  explicit AutotuneCache(std::string directory = "");

  // Any bytes; the key names all that the choice depends on (AutotuneKey), the value means something to its writer
  // alone, who checks it again when it comes back.
  absl::optional<std::string> Find(const std::string& key) const;
  // Takes the place of an older value, and replaces the file atomically. Where that fails, status() says why, and this
  // cache keeps to memory from then on.
  void Put(const std::string& key, const std::string& value);

  // Of writing the file.
  const absl::Status& status() const { return status_; }
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }

 private:
  // Oldest first.
  using Entries = std::list<std::pair<std::string, std::string>>;

  void Insert(std::string key, std::string value);
  void Parse(absl::string_view text);
  std::string Text() const;
  void ReadFile();
  absl::Status WriteFile();

  const std::string directory_;
  Entries entries_;
  std::unordered_map<std::string, Entries::iterator> index_;
  absl::Status status_;
};

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_AUTOTUNE_CACHE_H_
