#include "server/http/large_stack.h"

#include <pthread.h>

namespace ampd {
namespace {

// Pages of it that nobody touches cost nothing.
constexpr size_t kStackBytes = 8 << 20;

void* Run(void* work) {
  (*static_cast<absl::FunctionRef<void()>*>(work))();
  return nullptr;
}

}  // namespace

bool RunOnLargeStack(absl::FunctionRef<void()> work) {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  pthread_t thread;
  const bool started =
      pthread_attr_setstacksize(&attributes, kStackBytes) == 0 && pthread_create(&thread, &attributes, Run, &work) == 0;
  pthread_attr_destroy(&attributes);
  return started && pthread_join(thread, nullptr) == 0;
}

}  // namespace ampd
