// Where a job's steps spend their time, from a step_profile event. Pure.
#ifndef AMPD_CLIENT_ANALYSIS_PROFILE_H_
#define AMPD_CLIENT_ANALYSIS_PROFILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/analysis/events.h"

namespace ampd::client {

// What a row sums up.
enum class ProfileBy { kNode, kLayer, kOp, kStage, kKernel };

// The newest profile among `events`; FAILED_PRECONDITION says how one is made.
absl::StatusOr<v1::StepProfile> NewestProfile(const Events& events);

// A line on the steps, then a table of the `top` >= 1 longest rows, means of a step; last what lies in none of them.
// FAILED_PRECONDITION for kKernel where the profile has none. Times of kernels of other parts than a job's nodes have
// no layer.
absl::StatusOr<std::string> ProfileText(const v1::StepProfile& profile, ProfileBy by, int top);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_ANALYSIS_PROFILE_H_
