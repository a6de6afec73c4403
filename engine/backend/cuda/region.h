// The rows of region: a product and the elementwise steps behind it.
#ifndef AMPD_ENGINE_BACKEND_CUDA_REGION_H_
#define AMPD_ENGINE_BACKEND_CUDA_REGION_H_

#include "engine/backend/cuda/conv2d.h"
#include "engine/runtime/kernel_table.h"

namespace ampd::cuda {

// How regions run.
enum class RegionWay {
  // The first launch that is not captured settles it: as Context::autotune() remembers, else the faster of the two
  // below. What is joined is compared with its parts first, in every process: on random operands, where they must be
  // the same but for roundings, and with a NaN and an infinity among them, which must not get lost. Memory for those is
  // allocated and freed again. A call whose results differ is not used, and the cache's value says by how much. The
  // parts, where the library has no such call, without a cache, while a graph is captured, and, for this process, where
  // there is no memory for it.
  kMeasured,
  // In one call of a library. UNIMPLEMENTED where there is none.
  kJoined,
  // As the product's kernel and that of the fused steps behind it.
  kParts,
};

// `make` makes the convolutions that are joined. `table` outlives the rows, and has the parts'. RegisterRegion() does
// so by Conv::Create, and measures.
void RegisterRegions(runtime::KernelTable* table, Context* context, const MakeConv& make, RegionWay way);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_REGION_H_
