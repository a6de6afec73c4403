// Decoded samples, kept so that they are decoded once.
#ifndef AMPD_ENGINE_DATA_SAMPLE_CACHE_H_
#define AMPD_ENGINE_DATA_SAMPLE_CACHE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ampd/v1/data.pb.h"
#include "engine/data/image.h"

namespace ampd::data {

// Thread-safe. Samples are images, or rows of bytes, of one channel, that stand for something else. They are kept as
// they come while there is room; none is ever dropped for another, since an epoch that is larger than the cache would
// then find nothing in it.
class SampleCache {
 public:
  // By `spec`; nullptr for NONE. DISK keeps one file in `folder`, which is made where missing; the file has no name, so
  // it is gone with the process. Without a bound MEMORY takes up to half of AvailableHostMemory() at the time, DISK
  // half of the disk's free bytes; `kernel_root` as in engine/core/host_memory.h. Errors: INVALID_ARGUMENT for a
  // negative bound; of DISK, UNAVAILABLE when the file cannot be made.
  static absl::StatusOr<std::shared_ptr<SampleCache>> Create(const v1::CacheSpec& spec, const std::string& folder,
                                                             const std::string& kernel_root = "");

  // What MEMORY takes by `spec` at most, bytes, were it made now; of other kinds, which keep nothing in memory, 0.
  static int64_t MemoryBound(const v1::CacheSpec& spec, const std::string& kernel_root = "");

  // Of a kept sample beside its pixels, bytes.
  static constexpr int64_t kOverhead = 64;

  virtual ~SampleCache() = default;
  SampleCache(const SampleCache&) = delete;
  SampleCache& operator=(const SampleCache&) = delete;

  // Makes places for `count` samples and returns the first; the others follow. Before any other use of them.
  virtual int64_t AddPlaces(int64_t count) = 0;

  // What is kept at `place`; nullptr when nothing is, or when it cannot be read back.
  virtual std::shared_ptr<const Image> Get(int64_t place) const = 0;

  // Keeps `image` at `place` if there is room (of DISK also: if the disk takes it) and nothing is kept there.
  virtual void Put(int64_t place, Image image) = 0;

  // What is kept: pixels, and kOverhead bytes a sample for their administration. Never above max_bytes().
  virtual int64_t bytes() const = 0;
  int64_t max_bytes() const { return max_bytes_; }

 protected:
  explicit SampleCache(int64_t max_bytes) : max_bytes_(max_bytes) {}

 private:
  const int64_t max_bytes_;
};

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_SAMPLE_CACHE_H_
