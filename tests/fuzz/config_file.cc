// The daemon's configuration file.
#include "proto/spec/device_models.h"
#include "server/config/config.h"
#include "tests/fuzz/input.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ampd;
  const std::string path = fuzz::Write("ampd.yaml", {reinterpret_cast<const char*>(data), size});
  const auto none = [](const std::string&) { return std::optional<std::string>(); };
  const auto loaded = LoadConfiguration({"--config", path}, none, "/usr/bin");
  fuzz::CheckError(loaded.status());
  if (!loaded.ok()) return 0;
  const v1::ServerConfig& config = loaded->config;
  fuzz::Check(config.reattach_timeout_seconds() >= 1 && config.heartbeat_timeout_seconds() >= 1 &&
                  config.drain_timeout_seconds() >= 1 && config.max_spec_bytes() >= 1,
              "a bound that cannot be: " + config.ShortDebugString());
  for (const std::string& root : config.data_roots()) {
    fuzz::Check(!root.empty() && root[0] == '/', "a data root that is not absolute: " + root);
  }
  fuzz::CheckError(DeviceModelsWith(config.device_models()).status());
  return 0;
}
