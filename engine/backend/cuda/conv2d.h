// The rows of conv2d, its gradients and conv_transpose2d.
#ifndef AMPD_ENGINE_BACKEND_CUDA_CONV2D_H_
#define AMPD_ENGINE_BACKEND_CUDA_CONV2D_H_

#include <functional>
#include <memory>
#include <string>

#include "engine/backend/cuda/conv.h"
#include "engine/runtime/kernel_table.h"

namespace ampd::cuda {

using MakeConv = std::function<absl::StatusOr<std::unique_ptr<Conv>>(std::string, const ConvDesc&, Context*)>;

// What `make` makes or, where it has none (UNIMPLEMENTED) or fails (OwnKernelsServe), the backend's own. A failure is
// noted for the job's log.
absl::StatusOr<std::unique_ptr<Conv>> MakeConvOrOwn(std::string name, const ConvDesc& desc, Context* context,
                                                    const MakeConv& make);
// The library's or the backend's own.
absl::StatusOr<std::unique_ptr<Conv>> MakeBestConv(std::string name, const ConvDesc& desc, Context* context);

// The convolution of a node of the four ops, on operands of the dtype that its kernel works in: 8-bit ones are widened
// to f32, where TF32 holds them exactly.
ConvDesc ConvOf(const runtime::NodeDesc& desc, const DeviceProperties& properties);

// Registers the rows, computed by what `make` makes. RegisterConv2d() does so with MakeBestConv.
void RegisterConvolutions(runtime::KernelTable* table, Context* context, const MakeConv& make);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_CONV2D_H_
