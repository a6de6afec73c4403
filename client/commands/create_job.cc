#include "client/commands/create_job.h"

#include <random>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/exit_code.h"
#include "client/output/text.h"
#include "client/retry.h"

namespace ampd::client {

std::string NewRequestId() {
  std::random_device random;
  std::string id = "ampctl-";
  for (int i = 0; i < 4; ++i) absl::StrAppend(&id, absl::Hex(random(), absl::kZeroPad8));
  return id;
}

namespace {

template <typename Call>
auto WithRetries(Interrupt* interrupt, Call call) -> decltype(call()) {
  constexpr int kAttempts = 5;
  Backoff backoff(absl::Milliseconds(200), absl::Seconds(2));
  auto result = call();
  for (int attempt = 1; attempt < kAttempts && !result.ok() && IsTransient(result.status()); ++attempt) {
    if (!interrupt->SleepFor(backoff.Next())) break;
    result = call();
  }
  return result;
}

}  // namespace

absl::StatusOr<v1::Job> CreateJob(Connection* connection, const v1::CreateJobRequest& request, Interrupt* interrupt) {
  return WithRetries(interrupt, [&] { return connection->CreateJob(request); });
}

absl::StatusOr<v1::JobSweep> CreateSweep(Connection* connection, const v1::CreateSweepRequest& request,
                                         Interrupt* interrupt) {
  return WithRetries(interrupt, [&] { return connection->CreateSweep(request); });
}

void Warn(const JobFile& file, const google::protobuf::RepeatedPtrField<std::string>& warnings,
          const CommandContext& context) {
  for (const std::string& warning : warnings) {
    const size_t colon = warning.find(": ");
    const bool has_field = colon != std::string::npos;
    const std::string field = has_field ? warning.substr(0, colon) : "";
    const std::string what = Clean(warning.substr(has_field ? colon + 2 : 0));
    *context.err << "warning: " << file.Explain({Clean(field), what}) << "\n";
  }
  context.err->flush();
}

int Refused(const JobFile& file, const absl::Status& status, const CommandContext& context) {
  const std::vector<FieldViolation> violations = FieldViolationsOf(status);
  // gRPC's words: the server did not get to read it.
  if (absl::IsResourceExhausted(status) && absl::StrContains(status.message(), "Received message larger than max")) {
    *context.err << file.Explain({"", "too large for the server (max_spec_bytes)"}) << std::endl;
    return kExitUsage;
  }
  if (violations.empty()) return Fail(context, status);
  for (const FieldViolation& violation : violations) *context.err << file.Explain(violation) << "\n";
  context.err->flush();
  return kExitUsage;
}

}  // namespace ampd::client
