#include "server/main/worker_user.h"

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "server/files/files.h"
#include "server/launch/landlock.h"
#include "server/main/log.h"

namespace ampd {

absl::StatusOr<WorkerUser> FindWorkerUser(const std::string& name) {
  WorkerUser user;
  if (name.empty()) return user;
  AMPD_ASSIGN_OR_RETURN(user.account, FindWorkerAccount(name));
  AMPD_RETURN_IF_ERROR(CheckMayRunAsOthers());
  user.files = FileSharing(user.account->uid, user.account->gid);
  return user;
}

absl::Status OpenFoldersTo(const WorkerUser& user, const std::string& state_dir,
                           const std::vector<std::string>& folders) {
  if (!user.account) return absl::OkStatus();
  AMPD_RETURN_IF_ERROR(user.files.LetPass(state_dir));
  for (const std::string& folder : folders) {
    AMPD_RETURN_IF_ERROR(MakeFolder(folder));
    AMPD_RETURN_IF_ERROR(user.files.LetPass(folder));
    for (const std::string& above : FoldersThatKeepOut(*user.account, folder)) {
      Log(Severity::kWarning, absl::StrCat("worker_user: the mode of ", above, " keeps it out of ", folder));
    }
  }
  return absl::OkStatus();
}

void LogMissingSandbox() {
  if (LandlockVersion() > 0) return;
  Log(Severity::kWarning,
      "the kernel has no Landlock (it came with Linux 5.13), or a filter of system calls hides it: processes that plan "
      "and export models can open what their user can");
}

}  // namespace ampd
