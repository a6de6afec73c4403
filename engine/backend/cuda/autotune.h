// How the wrappers of CUDA's libraries choose among algorithms: by measuring each on the op's own buffers, the first
// time it runs.
#ifndef AMPD_ENGINE_BACKEND_CUDA_AUTOTUNE_H_
#define AMPD_ENGINE_BACKEND_CUDA_AUTOTUNE_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/backend/cuda/context.h"

namespace ampd::cuda {

// What a choice depends on: the device's name and compute capability, the driver's version, the library's name and
// version (`library`, e.g. "cublasLt 130100"), and the op with its shapes, dtypes and layouts (`op`).
std::string AutotuneKey(const Context& context, absl::string_view library, absl::string_view op);

// Whether something may be measured now: the context is a device's, has a cache to keep the result in, and its stream
// is not being captured.
absl::StatusOr<bool> MayMeasure(const Context& context);

// The fastest of `count` candidates by the median of several runs on the context's stream, each after a first one that
// does not count; of equals the first. Runs that take long are fewer, and a candidate whose second and third run take
// much longer than the best before it has no others. `run(i)` enqueues candidate i; one whose run fails is left out.
// NOT_FOUND, with the last such error, when none is left; another error when the device failed. Waits for the stream.
absl::StatusOr<int> FastestOf(const Context& context, int count, const std::function<absl::Status(int)>& run);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_AUTOTUNE_H_
