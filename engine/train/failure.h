// Which class a failed training belongs to; the class decides whether the job is tried again.
#ifndef AMPD_ENGINE_TRAIN_FAILURE_H_
#define AMPD_ENGINE_TRAIN_FAILURE_H_

#include "absl/status/status.h"
#include "ampd/v1/job.pb.h"

namespace ampd::train {

// `status`, an error, marked with `failure_class`; a mark it already has stays. OK stays OK.
absl::Status WithFailureClass(const absl::Status& status, v1::Failure::Class failure_class);

// The class marked on `status`, an error, and its message. Unmarked: INVALID_ARGUMENT and UNIMPLEMENTED are
// INVALID_SPEC, DATA_LOSS is DATA, RESOURCE_EXHAUSTED is OUT_OF_MEMORY, UNAVAILABLE (no device, or one that failed) is
// GPU_FAULT, the rest INTERNAL.
v1::Failure FailureOf(const absl::Status& status);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_FAILURE_H_
