// What Why() tells of skipped steps, and what to do about them. Pure.
#ifndef AMPD_CLIENT_ANALYSIS_WHY_SKIPS_H_
#define AMPD_CLIENT_ANALYSIS_WHY_SKIPS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/analysis/why.h"

namespace ampd::client {

// "skipping" or "skips, few", as at Why(); "skipping: calibrating" where a phase took many steps, or "calibrating"
// where a job that goes on has taken some, and none of its updates was made yet.
std::vector<Finding> Skips(const WhyInput& input);

// Of a job that diverged, or that its skips ended.
std::vector<std::string> AgainstDivergence(const WhyInput& input);

// Those of `step` steps of a training that are this job's.
int64_t OwnSteps(const v1::Job& job, int64_t step);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_ANALYSIS_WHY_SKIPS_H_
