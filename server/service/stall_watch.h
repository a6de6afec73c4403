// Ends streams whose client neither sends nor takes anything any more.
#ifndef AMPD_SERVER_SERVICE_STALL_WATCH_H_
#define AMPD_SERVER_SERVICE_STALL_WATCH_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/core/mutex.h"
#include "server/events/clock.h"

namespace ampd {

// Thread-safe. Only time in which a stream waits for its client counts, by the monotonic clock: what the server takes
// for its own work does not.
class StallWatch {
 public:
  // One stream, watched for as long as this lives.
  class Stream {
   public:
    Stream(StallWatch* watch, std::function<void()> end) : watch_(watch), end_(std::move(end)) {}
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    // It waits for its client from now on; no longer.
    void Wait();
    void Go();

   private:
    friend class StallWatch;
    StallWatch* const watch_;
    const std::function<void()> end_;
    // Of the watch's mutex.
    std::optional<absl::Duration> since_;
  };

  // `limit`: how long a stream waits at most; infinite: no end. `clock` outlives this.
  StallWatch(absl::Duration limit, const Clock* clock);
  ~StallWatch();
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

  // `end` is called on the watch's thread where the stream waited too long, perhaps when that is gone already. The
  // watch outlives the stream.
  std::unique_ptr<Stream> Watch(std::function<void()> end);
  // What an upload ends with in which nothing came for so long.
  absl::Status Silence() const;

  // Ends what waited too long. The watch's thread calls it every quarter of the limit.
  void Check();

 private:
  void Run();

  const absl::Duration limit_;
  const Clock* const clock_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Those that wait, by when they began to.
  std::multimap<absl::Duration, Stream*> waiting_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_STALL_WATCH_H_
