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
// All that a user had of a device until so many half-lives ago counts as half_life / ln 2 * 2^-32: with one of a week
// 0.2 ms of that device, which who is behind by it has in no time.
constexpr int kForgottenAfter = 32;
// In any case, for a half-life that is set to a longer one: at most 1465 counters of a user.
constexpr absl::Duration kUsageKept = absl::Hours(24 * 366);

absl::Time StretchOf(absl::Time time) {
  const int64_t seconds = absl::ToInt64Seconds(kUsageStretch);
  const int64_t unix_seconds = absl::ToUnixSeconds(time);
  return absl::FromUnixSeconds(unix_seconds - unix_seconds % seconds);
}

struct UsageStretch {
  absl::Time begin;
  std::string user;
};

// Nothing for another counter.
std::optional<UsageStretch> ParseCounter(const std::string& name) {
  if (!absl::StartsWith(name, kCounter)) return std::nullopt;
  std::pair<std::string, std::string> parts =
      absl::StrSplit(name.substr(sizeof(kCounter) - 1), absl::MaxSplits('/', 1));
  int64_t seconds = 0;
  if (!absl::SimpleAtoi(parts.first, &seconds)) return std::nullopt;
  return UsageStretch{absl::FromUnixSeconds(seconds), std::move(parts.second)};
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
  const std::optional<UsageStretch> stretch = ParseCounter(name);
  if (!stretch || !(value > 0)) return false;
  const absl::Time begin = stretch->begin;
  const absl::Time end = std::min(now, begin + kUsageStretch);
  if (end > begin) ledger->Add(stretch->user, value / absl::ToDoubleSeconds(end - begin), begin, end);
  return true;
}

std::vector<std::string> ForgottenUsage(const std::map<std::string, double>& counters, absl::Time now,
                                        absl::Duration half_life) {
  std::map<std::string, absl::Time> ends;
  absl::Time newest = absl::InfinitePast();
  for (const auto& [name, value] : counters) {
    const std::optional<UsageStretch> stretch = ParseCounter(name);
    if (!stretch) continue;
    newest = std::max(newest, ends[name] = stretch->begin + kUsageStretch);
  }
  // A clock that is ahead by years must not lose it all.
  const absl::Time kept_from = std::min(now, newest) - std::max(kForgottenAfter * half_life, kUsageKept);
  std::vector<std::string> forgotten;
  for (const auto& [name, end] : ends) {
    if (end < kept_from) forgotten.push_back(name);
  }
  return forgotten;
}

}  // namespace ampd
