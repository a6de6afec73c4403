// How the daemon ends: what begins that, and what makes it quicker once it is under way.
#ifndef AMPD_SERVER_MAIN_ENDING_H_
#define AMPD_SERVER_MAIN_ENDING_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "server/events/clock.h"
#include "server/main/drain_requests.h"

namespace ampd {

// Begins at the first signal or request. From then on requests, and a signal where a request began it, only shorten
// what is under way: whoever asks has at most the time that was asked for. Not thread safe.
class Ending {
 public:
  struct Options {
    // Whether a signal that begins the end leaves the workers alone. Requests never do.
    bool detach_on_signal = false;
    // After a signal, and of a request that names none: until the process has ended.
    absl::Duration timeout;
    // Begin the end; the process is gone within `timeout` of that, whatever is left.
    std::function<void(absl::Duration timeout)> detach;
    // `workers`: what workers have of it.
    std::function<void(absl::Duration timeout, absl::Duration workers, const std::string& reason)> drain;
    // The drain that is under way is to end earlier: so long from now.
    std::function<void(absl::Duration timeout, absl::Duration workers)> hurry;
  };
  enum class Answer { kGoOn, kCutShort };

  // `clock` outlives this.
  Ending(Options options, const Clock* clock);

  // kCutShort for the second signal: somebody does not want to wait.
  Answer OnSignal();
  void OnRequest(const DrainRequest& request);

  bool begun() const { return ends_.has_value(); }
  bool detaching() const { return detaching_; }
  // Until the process is to exit, whatever is left; 0 from then on, for ever before it begins.
  absl::Duration Left() const;

 private:
  void DrainWithin(absl::Duration timeout, const std::string& reason);

  const Options options_;
  const Clock* const clock_;
  bool signalled_ = false;
  bool detaching_ = false;
  // Of the clock's monotonic time.
  std::optional<absl::Duration> ends_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_MAIN_ENDING_H_
