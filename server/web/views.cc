#include "server/web/views.h"

#include <utility>

#include "proto/spec/text.h"

namespace ampd {

v1::Job SummaryView(v1::Job job) {
  v1::JobSpec all = std::move(*job.mutable_spec());
  v1::JobSpec& spec = *job.mutable_spec();
  spec.Clear();
  job.clear_plan();
  spec.set_name(all.name());
  *spec.mutable_labels() = std::move(*all.mutable_labels());
  spec.mutable_precision()->set_mode(all.precision().mode());
  if (all.has_train()) *spec.mutable_train() = std::move(*all.mutable_train());
  if (all.has_resources()) *spec.mutable_resources() = std::move(*all.mutable_resources());
  for (const v1::PhaseSpec& phase : all.phases()) spec.add_phases()->set_name(phase.name());
  return job;
}

int JobsWithin(const v1::ListJobsResponse& page, size_t json_bytes) {
  size_t bytes = 0;
  int jobs = 0;
  for (const v1::Job& job : page.jobs()) {
    bytes += ToJson(job, JsonStyle::kPretty).size();
    if (bytes > json_bytes && jobs > 0) break;
    ++jobs;
  }
  return jobs;
}

}  // namespace ampd
