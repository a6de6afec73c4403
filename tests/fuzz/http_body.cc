// Bodies of what the JSON API changes. The first byte says of which call: a token to sign in with, a message, or a
// job file.
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>

#include "ampd/v1/training_service.pb.h"
#include "google/protobuf/stubs/logging.h"
#include "proto/spec/resolve.h"
#include "proto/spec/text.h"
#include "proto/spec/yaml.h"
#include "server/http/exchange.h"
#include "server/web/access.h"
#include "server/web/sent_job_file.h"
#include "tests/fuzz/input.h"

namespace ampd::fuzz {
namespace {

void Token(const std::string& body) {
  const absl::StatusOr<std::string> token = TokenIn(body);
  CheckError(token.status());
  Check(!token.ok() || IsSecretText(*token), "a token that is none");
}

// What is understood says the same when it is written and read again.
template <typename Message>
void Change(const std::string& body) {
  Message message, again;
  const absl::Status status = ParseYaml(body, "body", &message);
  CheckError(status);
  if (!status.ok()) {
    google::protobuf::Struct fields;
    const std::string answer = ErrorResponse(status).body;
    Check(google::protobuf::util::JsonStringToMessage(answer, &fields).ok(), "no JSON: " + answer);
    return;
  }
  const std::string json = ToJson(message, JsonStyle::kCompact);
  const absl::Status read = ParseYaml(json, "body", &again);
  Check(read.ok() && ToJson(again, JsonStyle::kCompact) == json, json + ": " + read.ToString());
}

// A job file, as POST /submit reads it, and what is answered where it is none or does not resolve.
void JobFile(const std::string& body) {
  const SentJobFile file(body);
  CheckError(file.status());
  absl::Status status = file.status();
  if (status.ok()) status = ResolveJobSpec(file.spec()).status();
  CheckError(status);
  if (status.ok()) return;
  google::protobuf::Struct fields;
  const std::string answer = file.Refusal(status).body;
  Check(google::protobuf::util::JsonStringToMessage(answer, &fields).ok(), "no JSON: " + answer);
  const int lines = 1 + static_cast<int>(std::count(body.begin(), body.end(), '\n'));
  for (const auto& violation : fields.fields().at("violations").list_value().values()) {
    const auto& members = violation.struct_value().fields();
    const auto line = members.find("line");
    Check(line == members.end() || line->second.number_value() <= lines, "a line beyond the end: " + answer);
  }
}

}  // namespace
}  // namespace ampd::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ampd;
  static const auto silent = google::protobuf::SetLogHandler(nullptr);
  (void)silent;
  if (size == 0) return 0;
  const std::string body(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 7) {
    case 0:
      fuzz::Token(body);
      break;
    case 1:
      fuzz::Change<v1::CancelJobRequest>(body);
      break;
    case 2:
      fuzz::Change<v1::PauseJobRequest>(body);
      break;
    case 3:
      fuzz::Change<v1::ResumeJobRequest>(body);
      break;
    case 4:
      fuzz::Change<v1::RetryJobRequest>(body);
      break;
    case 5:
      fuzz::Change<v1::CheckpointJobRequest>(body);
      break;
    default:
      fuzz::JobFile(body);
  }
  return 0;
}
