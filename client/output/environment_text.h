// What an attempt computes with, part by part.
#ifndef AMPD_CLIENT_OUTPUT_ENVIRONMENT_TEXT_H_
#define AMPD_CLIENT_OUTPUT_ENVIRONMENT_TEXT_H_

#include <string>
#include <vector>

#include "ampd/v1/event.pb.h"

namespace ampd::client {

struct EnvironmentPart {
  // "engine", "device", a library's name, "threads", "instructions".
  std::string name;
  // As the server sent it.
  std::string value;
};

// What is set of it, in that order, libraries by name; "2 x NVIDIA H100" for devices of one name.
std::vector<EnvironmentPart> EnvironmentParts(const v1::AttemptEnvironment& environment);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_OUTPUT_ENVIRONMENT_TEXT_H_
