#include "engine/data/sample_cache.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/core/host_memory.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"
#include "engine/data/byte_source.h"

namespace ampd::data {
namespace {

// Half of what can be had without swapping.
int64_t DefaultMemory(const std::string& kernel_root) {
  return AvailableHostMemory(static_cast<int64_t>(PhysicalMemory() / 2), kernel_root) / 2;
}

int64_t DefaultDisk(int fd) {
  struct statvfs disk = {};
  if (::fstatvfs(fd, &disk) != 0) return 0;
  const uint64_t free = static_cast<uint64_t>(disk.f_bavail) * static_cast<uint64_t>(disk.f_frsize) / 2;
  return static_cast<int64_t>(std::min<uint64_t>(free, std::numeric_limits<int64_t>::max()));
}

// Counts what is kept.
class Budget {
 public:
  explicit Budget(int64_t max_bytes) : max_bytes_(max_bytes) {}

  bool Take(int64_t bytes) {
    if (bytes > max_bytes_ - used_) return false;
    used_ += bytes;
    return true;
  }
  void GiveBack(int64_t bytes) { used_ -= bytes; }
  int64_t used() const { return used_; }

 private:
  const int64_t max_bytes_;
  int64_t used_ = 0;
};

int64_t BytesOf(const Image& image) { return static_cast<int64_t>(image.pixels.size()) + SampleCache::kOverhead; }

class MemoryCache : public SampleCache {
 public:
  explicit MemoryCache(int64_t max_bytes) : SampleCache(max_bytes), budget_(max_bytes) {}

  int64_t AddPlaces(int64_t count) override {
    const MutexLock lock(&mutex_);
    const size_t first = images_.size();
    images_.resize(first + static_cast<size_t>(count));
    return static_cast<int64_t>(first);
  }

  std::shared_ptr<const Image> Get(int64_t place) const override {
    const MutexLock lock(&mutex_);
    return images_[static_cast<size_t>(place)];
  }

  void Put(int64_t place, Image image) override {
    image.pixels.shrink_to_fit();
    const int64_t bytes = BytesOf(image);
    auto kept = std::make_shared<const Image>(std::move(image));
    const MutexLock lock(&mutex_);
    std::shared_ptr<const Image>& at = images_[static_cast<size_t>(place)];
    if (at == nullptr && budget_.Take(bytes)) at = std::move(kept);
  }

  int64_t bytes() const override {
    const MutexLock lock(&mutex_);
    return budget_.used();
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<const Image>> images_ ABSL_GUARDED_BY(mutex_);
  Budget budget_ ABSL_GUARDED_BY(mutex_);
};

// Read and written with pread and pwrite: a disk that is full is then an error, where a mapped file would end the
// process; and what was read lately is in the kernel's memory anyway.
class DiskCache : public SampleCache {
 public:
  DiskCache(int fd, int64_t max_bytes) : SampleCache(max_bytes), fd_(fd), budget_(max_bytes) {}
  ~DiskCache() override { ::close(fd_); }

  int64_t AddPlaces(int64_t count) override {
    const MutexLock lock(&mutex_);
    const size_t first = entries_.size();
    entries_.resize(first + static_cast<size_t>(count));
    return static_cast<int64_t>(first);
  }

  std::shared_ptr<const Image> Get(int64_t place) const override {
    Entry entry;
    {
      const MutexLock lock(&mutex_);
      entry = entries_[static_cast<size_t>(place)];
    }
    if (entry.state != State::kKept) return nullptr;
    auto image = std::make_shared<Image>();
    image->height = entry.height;
    image->width = entry.width;
    image->channels = entry.channels;
    image->pixels.resize(static_cast<size_t>(entry.height) * entry.width * entry.channels);
    if (!Transfer(::pread, image->pixels.data(), image->pixels.size(), entry.offset)) return nullptr;
    return image;
  }

  void Put(int64_t place, Image image) override {
    const int64_t bytes = BytesOf(image);
    const int64_t offset = Reserve(place, bytes, static_cast<int64_t>(image.pixels.size()));
    if (offset < 0) return;
    const bool written = Transfer(::pwrite, image.pixels.data(), image.pixels.size(), offset);
    const MutexLock lock(&mutex_);
    Entry& entry = entries_[static_cast<size_t>(place)];
    if (!written) {
      // A full disk stays full: nothing more is tried.
      budget_.GiveBack(bytes);
      full_ = true;
      entry.state = State::kNone;
      return;
    }
    entry = {State::kKept, static_cast<uint8_t>(image.channels), static_cast<uint32_t>(image.height),
             static_cast<uint32_t>(image.width), offset};
  }

  int64_t bytes() const override {
    const MutexLock lock(&mutex_);
    return budget_.used();
  }

 private:
  enum class State : uint8_t { kNone, kBeingWritten, kKept };
  struct Entry {
    State state = State::kNone;
    uint8_t channels = 0;
    uint32_t height = 0;
    uint32_t width = 0;
    int64_t offset = 0;
  };

  // Where the pixels go; -1: nowhere.
  int64_t Reserve(int64_t place, int64_t bytes, int64_t pixels) {
    const MutexLock lock(&mutex_);
    Entry& entry = entries_[static_cast<size_t>(place)];
    if (full_ || entry.state != State::kNone || !budget_.Take(bytes)) return -1;
    entry.state = State::kBeingWritten;
    const int64_t offset = end_;
    end_ += pixels;
    return offset;
  }

  template <typename Call, typename Byte>
  bool Transfer(Call call, Byte* bytes, size_t size, int64_t offset) const {
    size_t done = 0;
    while (done < size) {
      const ssize_t n = call(fd_, bytes + done, size - done, offset + static_cast<int64_t>(done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      done += static_cast<size_t>(n);
    }
    return true;
  }

  const int fd_;
  mutable Mutex mutex_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);
  Budget budget_ ABSL_GUARDED_BY(mutex_);
  int64_t end_ ABSL_GUARDED_BY(mutex_) = 0;
  bool full_ ABSL_GUARDED_BY(mutex_) = false;
};

// A file in `folder` without a name.
absl::StatusOr<int> OpenNameless(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::string path = absl::StrCat(folder, "/samples-XXXXXX");
  const int fd = ::mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) {
    const int code = errno;
    return absl::UnavailableError(
        absl::StrCat("data.cache: no file can be made in ", folder, ": ", std::strerror(code)));
  }
  ::unlink(path.c_str());
  return fd;
}

}  // namespace

absl::StatusOr<std::shared_ptr<SampleCache>> SampleCache::Create(const v1::CacheSpec& spec, const std::string& folder,
                                                                 const std::string& kernel_root) {
  if (spec.max_bytes() < 0) {
    return absl::InvalidArgumentError(absl::StrCat("data.cache.max_bytes is ", spec.max_bytes(), "; it must be >= 0"));
  }
  switch (spec.kind()) {
    case v1::CacheSpec::NONE:
      return std::shared_ptr<SampleCache>();
    case v1::CacheSpec::DISK: {
      AMPD_ASSIGN_OR_RETURN(const int fd, OpenNameless(folder));
      return std::shared_ptr<SampleCache>(
          std::make_shared<DiskCache>(fd, spec.has_max_bytes() ? spec.max_bytes() : DefaultDisk(fd)));
    }
    default:
      return std::shared_ptr<SampleCache>(std::make_shared<MemoryCache>(MemoryBound(spec, kernel_root)));
  }
}

int64_t SampleCache::MemoryBound(const v1::CacheSpec& spec, const std::string& kernel_root) {
  if (spec.kind() == v1::CacheSpec::NONE || spec.kind() == v1::CacheSpec::DISK) return 0;
  return spec.has_max_bytes() ? spec.max_bytes() : DefaultMemory(kernel_root);
}

}  // namespace ampd::data
