// Submitting, for the verbs that make jobs.
#ifndef AMPD_CLIENT_COMMANDS_CREATE_JOB_H_
#define AMPD_CLIENT_COMMANDS_CREATE_JOB_H_

#include <string>

#include "absl/status/statusor.h"
#include "ampd/v1/training_service.pb.h"
#include "client/commands/command.h"
#include "client/job_file.h"

namespace ampd::client {

std::string NewRequestId();

// Tries again where the server could not be reached: the request id, which `request` has unless it only validates,
// makes repeats one job.
absl::StatusOr<v1::Job> CreateJob(Connection* connection, const v1::CreateJobRequest& request, Interrupt* interrupt);

// As CreateJob.
absl::StatusOr<v1::JobSweep> CreateSweep(Connection* connection, const v1::CreateSweepRequest& request,
                                         Interrupt* interrupt);

// Says on context.err what a server's `warnings` (ModelPlan.warnings) say of `file`.
void Warn(const JobFile& file, const google::protobuf::RepeatedPtrField<std::string>& warnings,
          const CommandContext& context);

// Says on context.err what is wrong with `file`, and gives the exit code for it.
int Refused(const JobFile& file, const absl::Status& status, const CommandContext& context);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_COMMANDS_CREATE_JOB_H_
