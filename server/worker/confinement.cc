#include "server/worker/confinement.h"

#include <grp.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/core/status.h"
#include "proto/spec/dataset_path.h"
#include "server/launch/landlock.h"
#include "server/launch/worker_account.h"
#include "server/worker/system_call_filter.h"

namespace ampd {
namespace {

// What the C library, OpenMP and oneDNN look into.
constexpr const char* kSystem[] = {"/usr",      "/lib",      "/lib32",           "/lib64",         "/opt",
                                   "/proc",     "/sys",      "/etc/ld.so.cache", "/etc/localtime", "/dev/null",
                                   "/dev/zero", "/dev/full", "/dev/random",      "/dev/urandom"};

// By which root reads what is not root's. Whatever else root is able to, looking into other processes for example,
// gets around what follows.
constexpr uint32_t kOfFiles = 1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH;

absl::Status Failed(absl::string_view what) { return absl::InternalError(absl::StrCat(what, ": ", strerror(errno))); }

// What the kernel lacks is the daemon's to tell.
absl::Status UnlessLacking(const absl::Status& status) {
  return absl::IsUnimplemented(status) ? absl::OkStatus() : status;
}

// All but those of `kept`, a sum of 1 << CAP_x, that it has. Nothing is called where it has no others: a service whose
// capabilities were taken away may be kept from capset() as well.
absl::Status DropCapabilities(uint32_t kept) {
  // Those that a process without a user's id 0 keeps over the change of its user.
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct now[2] = {};
  if (syscall(SYS_capget, &header, now) != 0) return Failed("cannot read its capabilities");
  const uint32_t left = now[0].permitted & kept;
  const bool has_others = now[0].permitted != left || now[1].permitted != 0 || (now[0].effective & ~left) != 0 ||
                          now[0].inheritable != 0 || now[1].inheritable != 0;
  if (!has_others) return absl::OkStatus();
  const __user_cap_data_struct less[2] = {{left, left, 0}, {}};
  return syscall(SYS_capset, &header, less) == 0 ? absl::OkStatus() : Failed("cannot give up capabilities");
}

absl::Status CheckNoWayBack(const WorkerAccount& account) {
  uid_t uids[3] = {};
  gid_t gids[3] = {};
  getresuid(&uids[0], &uids[1], &uids[2]);
  getresgid(&gids[0], &gids[1], &gids[2]);
  for (const uid_t uid : uids) {
    if (uid != account.uid) return absl::InternalError("is not the user that it is to be");
  }
  for (const gid_t gid : gids) {
    if (gid != account.gid) return absl::InternalError("is not of the group that it is to be of");
  }
  if (setuid(0) == 0 || setgid(0) == 0 || setgroups(0, nullptr) == 0) {
    return absl::InternalError("could become root again");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Confine() {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return Failed("cannot set no_new_privs");
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  umask(077);
  // While it is the daemon's user: the file is, too.
  std::ofstream("/proc/self/oom_score_adj") << 500;
  return absl::OkStatus();
}

absl::Status RunAs(absl::string_view run_as) {
  const std::optional<WorkerAccount> account = ParseRunAs(run_as);
  if (!account) return absl::InvalidArgumentError("--run-as: is not uid:gid:group,group of a user that is not root");
  // What it was started in may be closed to it.
  if (chdir("/") != 0) return Failed("cannot leave the folder that it was started in");
  if (setgroups(account->groups.size(), account->groups.data()) != 0) return Failed("cannot change its groups");
  if (setresgid(account->gid, account->gid, account->gid) != 0) return Failed("cannot change its group");
  if (setresuid(account->uid, account->uid, account->uid) != 0) return Failed("cannot change its user");
  AMPD_RETURN_IF_ERROR(DropCapabilities(0));
  // Else its own /proc/self would be root's: paths through /proc/self/fd could not be opened.
  if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) != 0) return Failed("cannot own its /proc/self");
  return CheckNoWayBack(*account);
}

absl::Status EnterSandbox(const std::string& folder, int landlock_version) {
  AMPD_RETURN_IF_ERROR(DropCapabilities(kOfFiles));
  absl::StatusOr<Landlock> rules = Landlock::Refuse(kWriteFiles | kChangeFolders | kExecuteFiles, landlock_version);
  if (rules.ok()) {
    rules->Allow("/dev/null", kWriteFiles);
    if (!folder.empty()) rules->Allow(folder, kWriteFiles);
    AMPD_RETURN_IF_ERROR(rules->Enforce());
  }
  AMPD_RETURN_IF_ERROR(UnlessLacking(rules.status()));
  return UnlessLacking(FilterSystemCalls(/*emptying=*/landlock_version >= kLandlockTruncates));
}

std::vector<std::string> DataFolders(const google::protobuf::RepeatedPtrField<std::string>& data_roots) {
  std::vector<std::string> folders;
  for (const std::string& root : data_roots) folders.push_back(FolderOfDatasetRoot(root).value_or(root));
  return folders;
}

absl::Status ReadOnlyBeneath(const std::vector<std::string>& paths) {
  absl::StatusOr<Landlock> rules = Landlock::Refuse(kReadFiles);
  if (!rules.ok()) return UnlessLacking(rules.status());
  for (const char* path : kSystem) rules->Allow(path, kReadFiles);
  for (const std::string& path : paths) rules->Allow(path, kReadFiles);
  std::error_code error;
  rules->Allow(std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string(), kReadFiles);
  const char* libraries = getenv("LD_LIBRARY_PATH");
  for (const absl::string_view path : absl::StrSplit(libraries == nullptr ? "" : libraries, ':', absl::SkipEmpty())) {
    rules->Allow(std::string(path), kReadFiles);
  }
  return rules->Enforce();
}

}  // namespace ampd
