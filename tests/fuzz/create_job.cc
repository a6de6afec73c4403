// The messages in which specs reach the daemon and its programs, in protobuf's wire form. The first byte says which.
#include "ampd/v1/plan.pb.h"
#include "ampd/v1/training_service.pb.h"
#include "ampd/v1/worker_link.pb.h"
#include "google/protobuf/stubs/logging.h"
#include "proto/spec/text.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/job_spec.h"

namespace {

template <typename Message>
void Feed(const std::string& bytes) {
  Message message;
  if (!message.ParseFromString(bytes)) return;
  ampd::fuzz::Check(!ampd::ToJson(message, ampd::JsonStyle::kCompact).empty(), "no JSON");
  ampd::ToYaml(message);
  ampd::fuzz::Submit(message.spec());
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ampd;
  static const auto silent = google::protobuf::SetLogHandler(nullptr);
  (void)silent;
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:
      Feed<v1::CreateJobRequest>(bytes);
      break;
    case 1:
      Feed<v1::PlanJobRequest>(bytes);
      break;
    case 2:
      Feed<v1::PlanRequest>(bytes);
      break;
    default:
      Feed<v1::DaemonWelcome>(bytes);
  }
  return 0;
}
