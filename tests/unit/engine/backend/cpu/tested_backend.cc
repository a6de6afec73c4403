#include "tests/unit/engine/backend/tested_backend.h"

#include "engine/backend/cpu/cpu_backend.h"

namespace ampd::testing {

runtime::Backend* TheBackend() {
  static runtime::Backend* const backend = MakeCpuBackend(1).release();
  return backend;
}

}  // namespace ampd::testing
