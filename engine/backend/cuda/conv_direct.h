// The backend's own convolution, for what the library has no plan for.
#ifndef AMPD_ENGINE_BACKEND_CUDA_CONV_DIRECT_H_
#define AMPD_ENGINE_BACKEND_CUDA_CONV_DIRECT_H_

#include <memory>
#include <string>

#include "engine/backend/cuda/conv.h"

namespace ampd::cuda {

// Any convolution without fusion, as a product of matrices whose elements are gathered from the image: on fp32
// arithmetic, so several times slower than matrix units. The same bits every time. INVALID_ARGUMENT for a fusion, or an
// extent past 2^31 - 1.
absl::StatusOr<std::unique_ptr<Conv>> MakeDirectConv(std::string name, const ConvDesc& desc, Context* context);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_CONV_DIRECT_H_
