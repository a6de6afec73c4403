// Kinds of events by their names.
#ifndef AMPD_PROTO_SPEC_EVENT_KINDS_H_
#define AMPD_PROTO_SPEC_EVENT_KINDS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ampd/v1/event.pb.h"

namespace ampd {

// Payloads of events by the names of their fields, each once: {"log"} is kLog. INVALID_ARGUMENT, with the field
// `kinds`, for a name that is none.
absl::StatusOr<std::vector<v1::JobEvent::PayloadCase>> PayloadsOf(const std::vector<std::string>& names);

// The name of a payload that is set.
std::string NameOfKind(v1::JobEvent::PayloadCase payload);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_EVENT_KINDS_H_
