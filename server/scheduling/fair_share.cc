#include "server/scheduling/fair_share.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ampd {
namespace {

constexpr char kCounter[] = "usage_device_seconds/";

absl::Time StretchOf(absl::Time time) {
  const int64_t seconds = absl::ToInt64Seconds(kUsageStretch);
  const int64_t unix_seconds = absl::ToUnixSeconds(time);
  return absl::FromUnixSeconds(unix_seconds - unix_seconds % seconds);
}

}  // namespace

double DecayedSeconds(absl::Time begin, absl::Time end, absl::Time now, absl::Duration half_life) {
  if (end <= begin) return 0;
  if (half_life == absl::InfiniteDuration()) return absl::ToDoubleSeconds(end - begin);
  const double scale = absl::ToDoubleSeconds(half_life);
  const auto weight = [&](absl::Time at) { return std::exp2(-absl::ToDoubleSeconds(now - at) / scale); };
  return scale / std::numbers::ln2 * (weight(end) - weight(begin));
}

double UsageLedger::Decayed(const Usage& usage, absl::Time now) const {
  if (half_life_ == absl::InfiniteDuration() || now <= usage.at) return usage.device_seconds;
  return usage.device_seconds * std::exp2(-absl::FDivDuration(now - usage.at, half_life_));
}

void UsageLedger::Add(const std::string& user, double devices, absl::Time begin, absl::Time end) {
  Usage& usage = users_[user];
  const absl::Time now = std::max(usage.at, end);
  usage.device_seconds = Decayed(usage, now) + devices * DecayedSeconds(begin, end, now, half_life_);
  usage.at = now;
}

double UsageLedger::At(const std::string& user, absl::Time now) const {
  const auto found = users_.find(user);
  return found == users_.end() ? 0 : Decayed(found->second, now);
}

std::map<std::string, double> UsageCounters(const std::string& user, double devices, absl::Time begin, absl::Time end) {
  std::map<std::string, double> counters;
  // A clock that was set forward by years must not make counters without end.
  begin = std::max(begin, end - absl::Hours(24 * 366));
  for (absl::Time at = begin; at < end;) {
    const absl::Time stretch = StretchOf(at);
    const absl::Time next = std::min(end, stretch + kUsageStretch);
    counters[absl::StrCat(kCounter, absl::ToUnixSeconds(stretch), "/", user)] =
        devices * absl::ToDoubleSeconds(next - at);
    at = next;
  }
  return counters;
}

bool AddUsageCounter(const std::string& name, double value, absl::Time now, UsageLedger* ledger) {
  if (!absl::StartsWith(name, kCounter)) return false;
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(name.substr(sizeof(kCounter) - 1), absl::MaxSplits('/', 1));
  int64_t seconds = 0;
  if (!absl::SimpleAtoi(parts.first, &seconds) || !(value > 0)) return false;
  const absl::Time begin = absl::FromUnixSeconds(seconds);
  const absl::Time end = std::min(now, begin + kUsageStretch);
  if (end > begin) ledger->Add(parts.second, value / absl::ToDoubleSeconds(end - begin), begin, end);
  return true;
}

}  // namespace ampd
