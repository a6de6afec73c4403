#include "server/launch/landlock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ampd {
namespace {

// The same on every architecture. <linux/landlock.h> is younger than some systems that this is built on, and does not
// know what newer kernels have.
constexpr long kCreateRuleset = 444, kAddRule = 445, kRestrictSelf = 446;
constexpr uint32_t kVersionFlag = 1;
constexpr int kPathBeneath = 1;

enum KernelRight : uint64_t {
  kExecute = 1 << 0,
  kWriteFile = 1 << 1,
  kReadFile = 1 << 2,
  kReadDir = 1 << 3,
  kRemoveDir = 1 << 4,
  kRemoveFile = 1 << 5,
  kMakeChar = 1 << 6,
  kMakeDir = 1 << 7,
  kMakeReg = 1 << 8,
  kMakeSock = 1 << 9,
  kMakeFifo = 1 << 10,
  kMakeBlock = 1 << 11,
  kMakeSym = 1 << 12,
  // Version 2; 3.
  kRefer = 1 << 13,
  kTruncate = 1 << 14,
};
// Those that a rule about a file can have.
constexpr uint64_t kOfFiles = kExecute | kWriteFile | kReadFile | kTruncate;
constexpr uint64_t kBindAndConnectTcp = 3, kAbstractSocketsAndSignals = 3;
constexpr int kReferVersion = 2, kNetVersion = 4, kScopeVersion = 6;

struct RulesetAttributes {
  uint64_t files = 0;
  uint64_t net = 0;
  uint64_t scoped = 0;
};

struct PathBeneath {
  uint64_t allowed = 0;
  int32_t folder = -1;
} __attribute__((packed));

uint64_t KernelRights(uint64_t rights, int version) {
  uint64_t kernel = 0;
  if (rights & kReadFiles) kernel |= kReadFile | kReadDir;
  if (rights & kExecuteFiles) kernel |= kExecute;
  if (rights & kWriteFiles) kernel |= kWriteFile | kMakeReg | kTruncate;
  if (rights & kChangeFolders) {
    kernel |= kRemoveDir | kRemoveFile | kMakeChar | kMakeDir | kMakeSock | kMakeFifo | kMakeBlock | kMakeSym | kRefer;
  }
  if (version < kReferVersion) kernel &= ~uint64_t{kRefer};
  if (version < kLandlockTruncates) kernel &= ~uint64_t{kTruncate};
  return kernel;
}

}  // namespace

int LandlockVersion() {
  const long version = syscall(kCreateRuleset, nullptr, size_t{0}, kVersionFlag);
  return version > 0 ? static_cast<int>(version) : 0;
}

absl::StatusOr<Landlock> Landlock::Refuse(uint64_t rights, int version) {
  if (version == 0) return absl::UnimplementedError("this kernel has no Landlock");
  RulesetAttributes attributes;
  attributes.files = KernelRights(rights, version);
  if (version >= kNetVersion) attributes.net = kBindAndConnectTcp;
  if (version >= kScopeVersion) attributes.scoped = kAbstractSocketsAndSignals;
  // Older kernels take a longer structure whose rest is 0.
  UniqueFd rules(static_cast<int>(syscall(kCreateRuleset, &attributes, sizeof(attributes), 0)));
  if (rules.valid()) return Landlock(std::move(rules), attributes.files);
  return absl::InternalError(absl::StrCat("Landlock takes no rules: ", strerror(errno)));
}

void Landlock::Allow(const std::string& path, uint64_t rights) {
  const UniqueFd fd(open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat info {};
  if (!fd.valid() || fstat(fd.get(), &info) != 0) return;
  PathBeneath rule;
  rule.allowed = KernelRights(rights, kLandlockTruncates) & refused_;
  if (!S_ISDIR(info.st_mode)) rule.allowed &= kOfFiles;
  rule.folder = fd.get();
  if (rule.allowed != 0) syscall(kAddRule, rules_.get(), kPathBeneath, &rule, 0);
}

absl::Status Landlock::Enforce() {
  if (syscall(kRestrictSelf, rules_.get(), 0) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("Landlock does not hold: ", strerror(errno)));
}

}  // namespace ampd
