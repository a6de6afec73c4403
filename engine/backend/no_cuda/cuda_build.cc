#include "engine/backend/cuda_build.h"

namespace ampd {

CudaBuild ThisCudaBuild() { return {}; }

}  // namespace ampd
