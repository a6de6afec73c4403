// Bodies of what the JSON API changes. The first byte says of which call: a token to sign in with, or a message.
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include "ampd/v1/training_service.pb.h"
#include "google/protobuf/stubs/logging.h"
#include "proto/spec/text.h"
#include "proto/spec/yaml.h"
#include "server/http/exchange.h"
#include "server/web/access.h"
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

}  // namespace
}  // namespace ampd::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ampd;
  static const auto silent = google::protobuf::SetLogHandler(nullptr);
  (void)silent;
  if (size == 0) return 0;
  const std::string body(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 6) {
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
    default:
      fuzz::Change<v1::CheckpointJobRequest>(body);
  }
  return 0;
}
