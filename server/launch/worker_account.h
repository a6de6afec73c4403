// The account that workers run as, where it is not the daemon's own (ServerConfig.worker_user).
#ifndef AMPD_SERVER_LAUNCH_WORKER_ACCOUNT_H_
#define AMPD_SERVER_LAUNCH_WORKER_ACCOUNT_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ampd {

struct WorkerAccount {
  // Neither is 0.
  uid_t uid = 0;
  gid_t gid = 0;
  // All of its groups, by which it may read data.
  std::vector<gid_t> groups;
  // Its home; empty where it is not known.
  std::string home;
};

// Of a name or number in the system's list of users. NOT_FOUND; INVALID_ARGUMENT for root, or one whose group is
// root's.
absl::StatusOr<WorkerAccount> FindWorkerAccount(const std::string& user);

// Whether this process can start workers as another user and look after them: as root, or with the capabilities that
// PERMISSION_DENIED names where one is missing. FAILED_PRECONDITION where the kernel lets users make hard links to
// files that are not theirs.
absl::Status CheckMayRunAsOthers();

// The folders above `path` that keep the account out, as their modes say; there may be access lists beside these.
std::vector<std::string> FoldersThatKeepOut(const WorkerAccount& account, const std::string& path);

// How ampd-worker is told, in --run-as: "uid:gid:group,group".
std::string RunAsText(const WorkerAccount& account);
// nullopt where it is no such text, or names root.
std::optional<WorkerAccount> ParseRunAs(absl::string_view text);

}  // namespace ampd

#endif  // AMPD_SERVER_LAUNCH_WORKER_ACCOUNT_H_
