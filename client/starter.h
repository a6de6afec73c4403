// Job files to begin with.
#ifndef AMPD_CLIENT_STARTER_H_
#define AMPD_CLIENT_STARTER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ampd::client {

struct Starter {
  // "layers", or the name of a preset of model.proto.
  std::string name;
  // What it trains, on what.
  std::string summary;
};

// "layers" first, then every preset.
const std::vector<Starter>& Starters();

// A commented job file that submit takes. Lines with "#" right before a name hold further settings; each of them, and
// all of them together, may lose their "#". `file` is where it will stand, for the commands in its head; the job is
// named after it where that makes a name. INVALID_ARGUMENT for an unknown starter, with the one that may be meant.
absl::StatusOr<std::string> StarterText(const std::string& starter, const std::string& file);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_STARTER_H_
