#include "engine/train/samples.h"

namespace ampd::train {

absl::StatusOr<std::unique_ptr<Sampler>> MakeSampler(const ResolvedJobSpec& spec, const PlannedModel& plan) {
  const v1::ReportSpec& report = spec.proto().report();
  switch (report.samples().kind_case()) {
    case v1::SampleSpec::kImages:
      return MakeImageSampler(spec);
    case v1::SampleSpec::kText:
      return MakeTextSampler(spec, plan);
    case v1::SampleSpec::KIND_NOT_SET:
      break;
  }
  return std::unique_ptr<Sampler>();
}

}  // namespace ampd::train
