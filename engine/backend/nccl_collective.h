// Sums of gradients over several CUDA devices by NCCL, or what stands in for it where NCCL or the CUDA toolkit was not
// found at build time. Link ampd_backend_cuda_or_none.
#ifndef AMPD_ENGINE_BACKEND_NCCL_COLLECTIVE_H_
#define AMPD_ENGINE_BACKEND_NCCL_COLLECTIVE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/runtime/backend.h"
#include "engine/runtime/collective.h"

namespace ampd {

// By rank, for backends of MakeCudaBackend() on different devices, which outlive them. UNIMPLEMENTED: this build has no
// NCCL, or a backend is not CUDA's. Else NCCL's error, which names the call.
absl::StatusOr<std::vector<std::unique_ptr<runtime::Collective>>> MakeNcclCollectives(
    absl::Span<runtime::Backend* const> backends);

// Of the NCCL that is loaded, e.g. "2.27.7"; empty: this build has none.
std::string NcclVersion();

}  // namespace ampd

#endif  // AMPD_ENGINE_BACKEND_NCCL_COLLECTIVE_H_
