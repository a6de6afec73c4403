// A backend that plans for a GPU which is not there: sizes, not computation.
#ifndef AMPD_ENGINE_TRAIN_SIZING_BACKEND_H_
#define AMPD_ENGINE_TRAIN_SIZING_BACKEND_H_

#include <memory>

#include "ampd/v1/device.pb.h"
#include "engine/runtime/backend.h"

namespace ampd::train {

// Plans of it have the padding, the fused steps, the published copies and the tensors of the CUDA backend's, and its
// gradients of logits lie over the logits. Workspace
// is what that backend's kernels ask for at most: products 32 MiB (8 MiB before compute capability 9.0) and
// convolutions 256 MiB; a region its product's and as much as one result; recurrences, attention and ctc as much as
// their results, multibox twice that. Every op has a kernel, but none runs, and no memory can be had: those calls give
// UNIMPLEMENTED.
std::unique_ptr<runtime::Backend> MakeSizingBackend(const v1::DeviceModel& model);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_SIZING_BACKEND_H_
