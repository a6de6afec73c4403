// Job specs as fuzz targets resolve them.
#ifndef AMPD_TESTS_FUZZ_JOB_SPEC_H_
#define AMPD_TESTS_FUZZ_JOB_SPEC_H_

#include "ampd/v1/job.pb.h"

namespace ampd::fuzz {

// Takes `spec` the way of a submitted one, as far as nothing is planned: resolved, checked against data roots, devices
// and uploads, written down and read again. Ends the process when a step breaks its promises.
void Submit(const v1::JobSpec& spec);

}  // namespace ampd::fuzz

#endif  // AMPD_TESTS_FUZZ_JOB_SPEC_H_
