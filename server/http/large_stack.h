// Room for handlers that call what recurses.
#ifndef AMPD_SERVER_HTTP_LARGE_STACK_H_
#define AMPD_SERVER_HTTP_LARGE_STACK_H_

#include "absl/functional/function_ref.h"

namespace ampd {

// Runs `work` on a thread of its own with 8 MiB of stack, and waits for its end: the HTTP port's own threads have what
// the system gives any, and would keep what was once touched of it. False, and nothing has run, where there is no
// thread.
bool RunOnLargeStack(absl::FunctionRef<void()> work);

}  // namespace ampd

#endif  // AMPD_SERVER_HTTP_LARGE_STACK_H_
