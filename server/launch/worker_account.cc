#include "server/launch/worker_account.h"

#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/core/status.h"

namespace ampd {
namespace {

// To become another user; to give it files and reach them afterwards; to end its processes.
constexpr struct {
  int number;
  const char* name;
} kNeeded[] = {{CAP_SETUID, "CAP_SETUID"},
               {CAP_SETGID, "CAP_SETGID"},
               {CAP_CHOWN, "CAP_CHOWN"},
               {CAP_FOWNER, "CAP_FOWNER"},
               {CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE"},
               {CAP_KILL, "CAP_KILL"}};

constexpr size_t kMaxEntryBytes = 1 << 20;

uint64_t EffectiveCapabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (syscall(SYS_capget, &header, data) != 0) return 0;
  return data[0].effective | uint64_t{data[1].effective} << 32;
}

// Calls getpwnam_r or getpwuid_r with as much room as it wants; null: there is none.
template <typename Look>
const passwd* LookUp(Look look, passwd* entry, std::vector<char>* buffer) {
  passwd* found = nullptr;
  for (buffer->resize(4096); buffer->size() <= kMaxEntryBytes; buffer->resize(2 * buffer->size())) {
    if (look(entry, buffer->data(), buffer->size(), &found) != ERANGE) break;
  }
  return found;
}

const passwd* FindEntry(const std::string& user, passwd* entry, std::vector<char>* buffer) {
  const passwd* found =
      LookUp([&](passwd* e, char* room, size_t size, passwd** f) { return getpwnam_r(user.c_str(), e, room, size, f); },
             entry, buffer);
  uid_t uid = 0;
  if (found != nullptr || !absl::SimpleAtoi(user, &uid)) return found;
  return LookUp([&](passwd* e, char* room, size_t size, passwd** f) { return getpwuid_r(uid, e, room, size, f); },
                entry, buffer);
}

std::vector<gid_t> GroupsOf(const passwd& entry) {
  int count = 64;
  std::vector<gid_t> groups(static_cast<size_t>(count));
  while (getgrouplist(entry.pw_name, entry.pw_gid, groups.data(), &count) < 0) {
    groups.resize(std::max(static_cast<size_t>(count), 2 * groups.size()));
    count = static_cast<int>(groups.size());
  }
  groups.resize(static_cast<size_t>(count));
  // Whoever is in root's group reads what is the daemon's.
  groups.erase(std::remove(groups.begin(), groups.end(), 0), groups.end());
  return groups;
}

bool LetsPass(const struct stat& info, const WorkerAccount& account) {
  const bool in_group = info.st_gid == account.gid ||
                        std::find(account.groups.begin(), account.groups.end(), info.st_gid) != account.groups.end();
  const mode_t bit = info.st_uid == account.uid ? S_IXUSR : in_group ? S_IXGRP : S_IXOTH;
  return (info.st_mode & bit) != 0;
}

}  // namespace

absl::StatusOr<WorkerAccount> FindWorkerAccount(const std::string& user) {
  passwd room{};
  std::vector<char> buffer;
  const passwd* entry = FindEntry(user, &room, &buffer);
  if (entry == nullptr) return absl::NotFoundError(absl::StrCat("no user of this machine is called \"", user, "\""));
  if (entry->pw_uid == 0 || entry->pw_gid == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", user, "\" is root, or in root's group: workers must be less than the daemon"));
  }
  return WorkerAccount{entry->pw_uid, entry->pw_gid, GroupsOf(*entry), entry->pw_dir};
}

absl::Status CheckMayRunAsOthers() {
  const uint64_t effective = EffectiveCapabilities();
  std::vector<std::string> missing;
  for (const auto& needed : kNeeded) {
    if ((effective >> needed.number & 1) == 0) missing.push_back(needed.name);
  }
  if (!missing.empty()) {
    return absl::PermissionDeniedError(absl::StrCat("workers of another user need a daemon that is root, or has ",
                                                    absl::StrJoin(missing, ", "), " as well"));
  }
  char links = '1';
  std::ifstream("/proc/sys/fs/protected_hardlinks") >> links;
  if (links != '0') return absl::OkStatus();
  return absl::FailedPreconditionError(
      "fs.protected_hardlinks is 0: a worker could pass files of the daemon off as its own (sysctl "
      "fs.protected_hardlinks=1)");
}

std::vector<std::string> FoldersThatKeepOut(const WorkerAccount& account, const std::string& path) {
  std::vector<std::string> folders;
  for (std::filesystem::path folder = std::filesystem::path(path).parent_path();; folder = folder.parent_path()) {
    struct stat info {};
    if (stat(folder.c_str(), &info) == 0 && !LetsPass(info, account)) folders.push_back(folder.string());
    if (folder == folder.parent_path()) return folders;
  }
}

std::string RunAsText(const WorkerAccount& account) {
  return absl::StrCat(account.uid, ":", account.gid, ":", absl::StrJoin(account.groups, ","));
}

std::optional<WorkerAccount> ParseRunAs(absl::string_view text) {
  const std::vector<absl::string_view> fields = absl::StrSplit(text, ':');
  WorkerAccount account;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &account.uid) || !absl::SimpleAtoi(fields[1], &account.gid)) {
    return std::nullopt;
  }
  for (const absl::string_view field : absl::StrSplit(fields[2], ',', absl::SkipEmpty())) {
    gid_t group = 0;
    if (!absl::SimpleAtoi(field, &group) || group == 0) return std::nullopt;
    account.groups.push_back(group);
  }
  if (account.uid == 0 || account.gid == 0) return std::nullopt;
  return account;
}

}  // namespace ampd
