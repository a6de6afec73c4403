#include "proto/spec/start_step.h"

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace ampd {

int64_t StepsBefore(const v1::JobSpec& spec) {
  const v1::WeightSource& source = spec.start_from();
  int64_t steps = 0;
  if (!source.continue_training()) return 0;
  return absl::SimpleAtoi(absl::StripPrefix(source.checkpoint(), "step-"), &steps) && steps > 0 ? steps : 0;
}

}  // namespace ampd
