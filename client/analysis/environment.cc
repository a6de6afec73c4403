#include "client/analysis/environment.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/output/text.h"

namespace ampd::client {
namespace {

std::vector<const v1::AttemptEnvironment*> EnvironmentsOf(const Events& events) {
  std::vector<const v1::AttemptEnvironment*> all;
  for (const v1::JobEvent& event : events) {
    if (event.has_environment()) all.push_back(&event.environment());
  }
  return all;
}

// Names of the parts in which `other` differs from `first`.
void AddDifferences(const v1::AttemptEnvironment& first, const v1::AttemptEnvironment& other,
                    std::vector<std::string>* names) {
  for (const EnvironmentPair& pair : PairEnvironments(&first, &other)) {
    if (pair.a != pair.b && std::find(names->begin(), names->end(), pair.name) == names->end()) {
      names->push_back(Clean(pair.name));
    }
  }
}

std::string ModeTaken(const Events& events) {
  std::string mode;
  for (const v1::JobEvent& event : events) {
    if (event.has_mode_chosen()) mode = v1::PrecisionSpec::Mode_Name(event.mode_chosen().mode());
  }
  return mode;
}

// What AUTO took of two jobs that both have it, where that differs.
std::string OtherModes(const Events& a, const Events& b) {
  const std::string of_a = ModeTaken(a), of_b = ModeTaken(b);
  return of_a.empty() || of_b.empty() || of_a == of_b ? "" : absl::StrCat(of_a, " for A and ", of_b, " for B");
}

// Why engines of one version may be of different code; empty: they are not.
std::string UnknownCode(const std::string& version) {
  if (absl::EndsWith(version, ".dirty")) {
    return absl::StrCat("both name the engine ", Clean(version),
                        ", which was built of files that differ from its revision");
  }
  if (absl::StrContains(version, "+g")) return "";
  return absl::StrCat("both name the engine ", Clean(version), " without the revision that it was built of");
}

std::vector<std::string> ChangesOver(const std::vector<const v1::AttemptEnvironment*>& attempts) {
  std::vector<std::string> names;
  for (const v1::AttemptEnvironment* attempt : attempts) AddDifferences(*attempts[0], *attempt, &names);
  return names;
}

}  // namespace

const v1::AttemptEnvironment* NewestEnvironment(const Events& events) {
  const auto all = EnvironmentsOf(events);
  return all.empty() ? nullptr : all.back();
}

std::vector<EnvironmentPair> PairEnvironments(const v1::AttemptEnvironment* a, const v1::AttemptEnvironment* b) {
  std::vector<EnvironmentPair> pairs;
  if (a != nullptr) {
    for (EnvironmentPart& part : EnvironmentParts(*a)) pairs.push_back({part.name, part.value, "-"});
  }
  if (b == nullptr) return pairs;
  for (EnvironmentPart& part : EnvironmentParts(*b)) {
    const auto same =
        std::find_if(pairs.begin(), pairs.end(), [&](const EnvironmentPair& p) { return p.name == part.name; });
    if (same == pairs.end()) {
      pairs.push_back({part.name, "-", part.value});
    } else {
      same->b = part.value;
    }
  }
  return pairs;
}

Determinism DeterminismOf(const Events& a, const Events& b) {
  const auto of_a = EnvironmentsOf(a), of_b = EnvironmentsOf(b);
  if (of_a.empty() || of_b.empty()) {
    return {false, "what one of them computed with is not known, so equal specs may give other bits"};
  }
  for (const auto& [name, attempts] : {std::pair("A", of_a), std::pair("B", of_b)}) {
    const std::vector<std::string> changes = ChangesOver(attempts);
    if (changes.empty()) continue;
    return {false, absl::StrCat("attempts of ", name, " computed with other ", absl::StrJoin(changes, ", "),
                                " than its first, so equal specs may give other bits")};
  }
  if (const std::string modes = OtherModes(a, b); !modes.empty()) {
    return {false, absl::StrCat("AUTO took ", modes, ", by what was fast at the time")};
  }
  std::vector<std::string> differences;
  AddDifferences(*of_a[0], *of_b[0], &differences);
  if (!differences.empty()) {
    return {false, absl::StrCat("they computed with other ", absl::StrJoin(differences, ", "),
                                ", so equal specs may give ", "other bits")};
  }
  if (const std::string unknown = UnknownCode(of_a[0]->engine_version()); !unknown.empty()) {
    return {false, absl::StrCat(unknown, ", so equal specs may give other bits")};
  }
  if (of_a[0]->instruction_set().empty()) {
    return {false,
            "both computed with the same, but on a GPU each job measures which kernels are fast, so equal specs may "
            "give other bits"};
  }
  return {true, "both computed with the same: equal specs and data give equal bits"};
}

}  // namespace ampd::client
