// What a job's attempts computed with, and whether two jobs that are told the same can be expected to give the same
// bits. Pure.
#ifndef AMPD_CLIENT_ANALYSIS_ENVIRONMENT_H_
#define AMPD_CLIENT_ANALYSIS_ENVIRONMENT_H_

#include <string>
#include <vector>

#include "ampd/v1/event.pb.h"
#include "client/analysis/events.h"
#include "client/output/environment_text.h"

namespace ampd::client {

// Of the newest attempt that told of it; null where none did.
const v1::AttemptEnvironment* NewestEnvironment(const Events& events);

// One part of both; "-" where one has none.
struct EnvironmentPair {
  std::string name;
  std::string a, b;
};
// In EnvironmentParts()' order; null has no parts.
std::vector<EnvironmentPair> PairEnvironments(const v1::AttemptEnvironment* a, const v1::AttemptEnvironment* b);

struct Determinism {
  // Equal specs and data give equal bits.
  bool equal_bits = false;
  // Why, or why not, for people.
  std::string reason;
};
Determinism DeterminismOf(const Events& a, const Events& b);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_ANALYSIS_ENVIRONMENT_H_
