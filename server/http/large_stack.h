// Room for handlers that call what recurses.
#ifndef AMPD_SERVER_HTTP_LARGE_STACK_H_
#define AMPD_SERVER_HTTP_LARGE_STACK_H_

#include "absl/functional/function_ref.h"

namespace ampd {

// Runs `work` on a thread of its own with 8 MiB of stack, as a program's first one has, and waits for its end: those of
// the HTTP port, which Debian's civetweb makes, have 100 KiB. False, and nothing has run, where there is no thread.
bool RunOnLargeStack(absl::FunctionRef<void()> work);

}  // namespace ampd

#endif  // AMPD_SERVER_HTTP_LARGE_STACK_H_
