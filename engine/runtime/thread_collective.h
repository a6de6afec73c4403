// Collectives of replicas in the host's memory.
#ifndef AMPD_ENGINE_RUNTIME_THREAD_COLLECTIVE_H_
#define AMPD_ENGINE_RUNTIME_THREAD_COLLECTIVE_H_

#include <memory>
#include <vector>

#include "engine/runtime/collective.h"

namespace ampd::runtime {

// For `size` >= 1 replicas, by rank. One thread adds beside theirs, ((replica 0 + replica 1) + replica 2) + ...,
// element by element: with one micro-batch a replica, the bits of one device that takes as many micro-batches. It ends
// when all of them are destroyed.
std::vector<std::unique_ptr<Collective>> MakeThreadCollectives(int size);

}  // namespace ampd::runtime

#endif  // AMPD_ENGINE_RUNTIME_THREAD_COLLECTIVE_H_
