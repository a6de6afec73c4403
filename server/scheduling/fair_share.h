// Who had how much of the devices: usage that is forgotten by halves.
#ifndef AMPD_SERVER_SCHEDULING_FAIR_SHARE_H_
#define AMPD_SERVER_SCHEDULING_FAIR_SHARE_H_

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace ampd {

// Seconds in [begin, end] as they count at `now` >= end, each by 2^(-age / half_life): half_life / ln 2 *
// (2^(-(now - end) / half_life) - 2^(-(now - begin) / half_life)); the span itself with an infinite half-life.
double DecayedSeconds(absl::Time begin, absl::Time end, absl::Time now, absl::Duration half_life);

// Device-seconds by user. Not thread-safe.
class UsageLedger {
 public:
  // `half_life` > 0; infinite: nothing is forgotten.
  explicit UsageLedger(absl::Duration half_life) : half_life_(half_life) {}

  // `devices` (a share of one for who shares it) were held from `begin` to `end`.
  void Add(const std::string& user, double devices, absl::Time begin, absl::Time end);
  // What counts at `now`, not before the newest end that was added. 0 for a user that is not known.
  double At(const std::string& user, absl::Time now) const;
  absl::Duration half_life() const { return half_life_; }

 private:
  struct Usage {
    double device_seconds = 0;
    absl::Time at = absl::InfinitePast();
  };
  double Decayed(const Usage& usage, absl::Time now) const;

  absl::Duration half_life_;
  std::map<std::string, Usage> users_;
};

// Usage as counters of the store that only grow: a counter for each user and stretch of six hours, named
// "usage_device_seconds/STRETCH/USER". A ledger is made from them when the daemon starts.
inline constexpr absl::Duration kUsageStretch = absl::Hours(6);
// Device-seconds by counter for `devices` held from `begin` to `end`.
std::map<std::string, double> UsageCounters(const std::string& user, double devices, absl::Time begin, absl::Time end);
// Adds what such a counter stands for; false for one that is none. `now`: a stretch does not reach beyond it.
bool AddUsageCounter(const std::string& name, double value, absl::Time now, UsageLedger* ledger);
// Those of `counters` that need not be kept any longer: their usage is forgotten as of `now`, or of the newest usage
// where that is older. None with an infinite half-life.
std::vector<std::string> ForgottenUsage(const std::map<std::string, double>& counters, absl::Time now,
                                        absl::Duration half_life);

}  // namespace ampd

#endif  // AMPD_SERVER_SCHEDULING_FAIR_SHARE_H_
