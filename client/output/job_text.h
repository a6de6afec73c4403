// A job for people.
#ifndef AMPD_CLIENT_OUTPUT_JOB_TEXT_H_
#define AMPD_CLIENT_OUTPUT_JOB_TEXT_H_

#include <string>

#include "ampd/v1/event.pb.h"
#include "ampd/v1/job.pb.h"

namespace ampd::client {

// One "name: value" a line: what `get` prints. Times are local.
std::string JobText(const v1::Job& job);

// The layers with their dtypes, shapes and parameters, and what they add up to.
std::string PlanText(const v1::ModelPlan& plan);

// The job's spec as YAML that `submit` takes, with the job's state in comments above; times there are UTC, as the file
// may be read elsewhere.
std::string ResubmittableYaml(const v1::Job& job);

// The mode that it trains in: of a job of mode AUTO the one that it took, or AUTO until then.
v1::PrecisionSpec::Mode ModeOf(const v1::Job& job);

// "FP16", of a job of mode AUTO that has chosen "BF16 (AUTO)", of one that measures "bench".
std::string ModeText(const v1::Job& job);

// "team=vision, x=y", by their keys; empty where there is none.
std::string LabelsText(const v1::Job& job);

// Whether its plan says anything: that of a job whose data could not be read does not.
bool IsPlanned(const v1::Job& job);

// "RUNNING", or "QUEUED (RESOURCES, 2 in line)".
std::string StateText(const v1::Job& job);

// The terminal event of a job that has ended, as far as the job tells it.
v1::StateChange EndOf(const v1::Job& job);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_OUTPUT_JOB_TEXT_H_
