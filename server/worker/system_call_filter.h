// Which system calls a process that plans or exports may still make.
#ifndef AMPD_SERVER_WORKER_SYSTEM_CALL_FILTER_H_
#define AMPD_SERVER_WORKER_SYSTEM_CALL_FILTER_H_

#include "absl/status/status.h"

namespace ampd {

// From here on, for this thread and all that it starts, the kernel refuses (EPERM) to make sockets, start processes,
// run programs, send signals to, look into or change limits and scheduling of other processes, change names, owners or
// modes of files, and whatever is for administrators. Threads can be started, but not bound to processors. What is open
// stays usable. UNIMPLEMENTED where the kernel, or this program on this processor, has no such filter. Needs
// no_new_privs. Under sanitizers processes can be started and traced, as they do themselves.
//
// Without `emptying` no file is emptied by opening it (O_TRUNC, creat), and openat2() is not there (ENOSYS).
absl::Status FilterSystemCalls(bool emptying);

}  // namespace ampd

#endif  // AMPD_SERVER_WORKER_SYSTEM_CALL_FILTER_H_
