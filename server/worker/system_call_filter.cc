#include "server/worker/system_call_filter.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/launch/sanitized.h"

namespace ampd {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kArchitecture = 0;
#endif

// The calls of x86-64's 32-bit sibling are numbered from here.
constexpr uint32_t kOtherNumbers = 0x40000000;

// Some came with kernels younger than the headers that this is built with; their numbers are the same everywhere.
constexpr uint32_t kPidfdSendSignal = 424, kIoUringSetup = 425, kOpenTree = 428, kMoveMount = 429, kFsopen = 430,
                   kFspick = 433, kPidfdOpen = 434, kClone3 = 435, kOpenat2 = 437, kPidfdGetfd = 438,
                   kProcessMadvise = 440, kMountSetattr = 442, kProcessMrelease = 448, kFchmodat2 = 452;
constexpr uint32_t kSchedCore = 62;  // PR_SCHED_CORE

constexpr uint32_t kRefused[] = {
    // The network.
    SYS_socket, SYS_bind, SYS_listen, SYS_accept, SYS_accept4, SYS_connect,
    // It does all of these, and is not looked at by such a filter.
    kIoUringSetup,
    // Programs, and other processes.
    SYS_execve, SYS_execveat, SYS_tkill, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, kPidfdSendSignal, kPidfdOpen,
    kPidfdGetfd, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp, SYS_setpriority, SYS_setpgid, SYS_setsid,
    SYS_ioprio_set, SYS_get_robust_list, kProcessMadvise, kProcessMrelease,
    // Names, owners and modes of files. What is opened is up to Landlock.
    SYS_truncate, SYS_renameat2, SYS_mkdirat, SYS_unlinkat, SYS_linkat, SYS_symlinkat, SYS_mknodat, SYS_fchmod,
    SYS_fchmodat, kFchmodat2, SYS_fchown, SYS_fchownat, SYS_utimensat, SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr,
    SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr, SYS_open_by_handle_at,
#if defined(__x86_64__)
    SYS_rename, SYS_renameat, SYS_mkdir, SYS_rmdir, SYS_unlink, SYS_link, SYS_symlink, SYS_mknod, SYS_chmod, SYS_chown,
    SYS_lchown, SYS_utime, SYS_utimes, SYS_futimesat, SYS_iopl, SYS_ioperm,
#endif
    // The machine.
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_unshare, SYS_setns, kOpenTree, kMoveMount, kFsopen, kFspick,
    kMountSetattr, SYS_swapon, SYS_swapoff, SYS_reboot, SYS_kexec_load, SYS_init_module, SYS_finit_module,
    SYS_delete_module, SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_add_key, SYS_request_key, SYS_keyctl,
    SYS_acct, SYS_quotactl, SYS_syslog, SYS_settimeofday, SYS_clock_settime, SYS_adjtimex, SYS_clock_adjtime,
    SYS_sethostname, SYS_setdomainname, SYS_fanotify_init, SYS_personality};

// Of processes by their ids, where 0 is the caller itself: limits, scheduling, the memory's place.
constexpr uint32_t kOnProcesses[] = {SYS_prlimit64,     SYS_sched_setscheduler, SYS_sched_setparam,
                                     SYS_sched_setattr, SYS_migrate_pages,      SYS_move_pages};

class Program {
 public:
  explicit Program(bool emptying) {
    Load(offsetof(seccomp_data, arch));
    Skip(BPF_JEQ, kArchitecture, 1, 0);
    Refuse(EPERM);
    Load(offsetof(seccomp_data, nr));
    Skip(BPF_JGE, kOtherNumbers, 0, 1);
    Refuse(EPERM);
    for (const uint32_t call : kRefused) RefuseCall(call, EPERM);
    if (!kSanitized) AddProcesses();
    for (const uint32_t call : {uint32_t{SYS_kill}, uint32_t{SYS_tgkill}}) AllowOnSelf(call, /*by_zero=*/false, EPERM);
    for (const uint32_t call : kOnProcesses) AllowOnSelf(call, /*by_zero=*/true, EPERM);
    // OpenMP binds the threads that it starts by their ids, which nobody knows yet, and ends the process where that
    // fails. So nothing is done, and called done.
    AllowOnSelf(SYS_sched_setaffinity, /*by_zero=*/true, 0);
    // Who gets a signal, and which, when something comes to a descriptor.
    RefuseArguments(SYS_fcntl, 1, {F_SETOWN, F_SETOWN_EX, F_SETSIG});
    RefuseArguments(SYS_ioctl, 1, {FIOSETOWN, SIOCSPGRP});
    RefuseArguments(SYS_prctl, 0, {kSchedCore});
    if (!emptying) RefuseEmptying();
    Add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }

  absl::Status Install() {
    sock_fprog program{static_cast<unsigned short>(code_.size()), code_.data()};
    // Not by seccomp(), which services are often kept from; prctl() does the same.
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0) return absl::OkStatus();
    return absl::UnimplementedError(absl::StrCat("this kernel takes no filter of system calls: ", strerror(errno)));
  }

 private:
  void Add(int code, uint32_t k, int if_true = 0, int if_false = 0) {
    code_.push_back({static_cast<uint16_t>(code), static_cast<uint8_t>(if_true), static_cast<uint8_t>(if_false), k});
  }
  void Load(size_t offset) { Add(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)); }
  void Skip(int comparison, uint32_t value, int if_true, int if_false) {
    Add(BPF_JMP | comparison | BPF_K, value, if_true, if_false);
  }
  void Refuse(uint32_t error) { Add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error); }
  // Of what was loaded last.
  void RefuseCall(uint32_t call, uint32_t error) {
    Skip(BPF_JEQ, call, 0, 1);
    Refuse(error);
  }

  // The low half of an argument; both our processors are little-endian. Every way from here ends.
  void LoadArgumentOf(uint32_t call, size_t argument, size_t length) {
    Skip(BPF_JEQ, call, 0, static_cast<int>(length));
    Load(offsetof(seccomp_data, args) + argument * sizeof(uint64_t));
  }

  void AddProcesses() {
    RefuseCall(SYS_ptrace, EPERM);
#if defined(__x86_64__)
    RefuseCall(SYS_fork, EPERM);
    RefuseCall(SYS_vfork, EPERM);
#endif
    // Its flags are out of the filter's sight; the C library then asks for clone.
    RefuseCall(kClone3, ENOSYS);
    LoadArgumentOf(SYS_clone, 0, 4);
    Skip(BPF_JSET, CLONE_THREAD, 1, 0);
    Refuse(EPERM);
    Add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }

  // O_TRUNC empties what is opened to read, too.
  void RefuseEmptying() {
#if defined(__x86_64__)
    RefuseCall(SYS_creat, EPERM);
    RefuseFlag(SYS_open, 1, O_TRUNC);
#endif
    RefuseFlag(SYS_openat, 2, O_TRUNC);
    // Its flags are out of the filter's sight; who asks for it does without on older kernels.
    RefuseCall(kOpenat2, ENOSYS);
  }

  void RefuseFlag(uint32_t call, size_t argument, uint32_t flag) {
    LoadArgumentOf(call, argument, 4);
    Skip(BPF_JSET, flag, 0, 1);
    Refuse(EPERM);
    Add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }

  void AllowOnSelf(uint32_t call, bool by_zero, uint32_t error) {
    const uint32_t self = static_cast<uint32_t>(getpid());
    LoadArgumentOf(call, 0, 5);
    Skip(BPF_JEQ, self, 2, 0);
    Skip(BPF_JEQ, by_zero ? 0 : self, 1, 0);
    Refuse(error);
    Add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }

  void RefuseArguments(uint32_t call, size_t argument, const std::vector<uint32_t>& refused) {
    LoadArgumentOf(call, argument, 2 * refused.size() + 2);
    for (const uint32_t value : refused) RefuseCall(value, EPERM);
    Add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }

  std::vector<sock_filter> code_;
};

}  // namespace

absl::Status FilterSystemCalls(bool emptying) {
  if (kArchitecture == 0) return absl::UnimplementedError("no filter of system calls is known for this processor");
  return Program(emptying).Install();
}

}  // namespace ampd
