// Tells the service manager that started the daemon (systemd's Type=notify) how it is: sd_notify(3)'s datagrams.
#ifndef AMPD_SERVER_MAIN_SERVICE_MANAGER_H_
#define AMPD_SERVER_MAIN_SERVICE_MANAGER_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ampd {

// Thread-safe.
class ServiceManager {
 public:
  // `socket`: what NOTIFY_SOCKET says, an absolute path or "@name" for an abstract one; none or empty: nobody is told
  // anything, and every call succeeds.
  explicit ServiceManager(std::optional<std::string> socket);

  // It starts, and needs up to `time` more: the service's own start timeout counts no more.
  absl::Status Starting(absl::string_view status, absl::Duration time) const;
  // The daemon serves; `status` is for people ("systemctl status" shows it).
  absl::Status Ready(absl::string_view status) const;
  // It is about to exit, and needs up to `time` for that: the service's own stop timeout counts no more.
  absl::Status Stopping(absl::string_view status, absl::Duration time) const;

 private:
  // INVALID_ARGUMENT for a socket that is no address; else what the system said, with the address.
  absl::Status Send(const std::string& message) const;

  const std::string socket_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_MAIN_SERVICE_MANAGER_H_
