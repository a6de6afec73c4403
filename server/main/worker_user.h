// Whom workers run as, and how they come to what they need.
#ifndef AMPD_SERVER_MAIN_WORKER_USER_H_
#define AMPD_SERVER_MAIN_WORKER_USER_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/files/file_sharing.h"
#include "server/launch/worker_account.h"

namespace ampd {

struct WorkerUser {
  // Unset: the daemon's own.
  std::optional<WorkerAccount> account;
  FileSharing files;
};

// Of ServerConfig.worker_user; empty: the daemon's own. FindWorkerAccount's and CheckMayRunAsOthers' errors.
absl::StatusOr<WorkerUser> FindWorkerUser(const std::string& name);

// Makes `folders`, in which each job has one, and lets the user through them and through `state_dir`. Logs which
// folders above them keep it out.
absl::Status OpenFoldersTo(const WorkerUser& user, const std::string& state_dir,
                           const std::vector<std::string>& folders);

// Logs what this kernel lacks to keep planners and exporters in; nothing where it has it.
void LogMissingSandbox();

}  // namespace ampd

#endif  // AMPD_SERVER_MAIN_WORKER_USER_H_
