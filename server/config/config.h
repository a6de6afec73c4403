// The daemon's configuration: flag > environment > file > default.
#ifndef AMPD_SERVER_CONFIG_CONFIG_H_
#define AMPD_SERVER_CONFIG_CONFIG_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/config.pb.h"

namespace ampd {

struct Configuration {
  // Set for --help and --version: print this and exit with 0; the rest is empty then.
  std::optional<std::string> print;
  // Every field set and valid, but for cpu_devices, which stays unset where nobody set it. Paths are absolute;
  // data_roots are normal and end without '/'.
  v1::ServerConfig config;
  // To be logged at every start.
  std::vector<std::string> warnings;
};

// The value of an environment variable, nullopt when unset. An empty one counts as unset, but AMPD_NVML_LIBRARY's.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

// Reads the command line (without the program's name), the environment and the file that --config names. `program_dir`
// is where the daemon's own program lies. INVALID_ARGUMENT with everything that is wrong, a line each, naming its
// field, variable or file and line; NOT_FOUND when that file cannot be read.
absl::StatusOr<Configuration> LoadConfiguration(const std::vector<std::string>& arguments,
                                                const Environment& environment, const std::string& program_dir);

// This process's environment.
std::optional<std::string> ProcessEnvironment(const std::string& name);

}  // namespace ampd

#endif  // AMPD_SERVER_CONFIG_CONFIG_H_
