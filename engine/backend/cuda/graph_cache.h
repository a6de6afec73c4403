// Captured steps, made ready to be launched, within a bound on what they take of the device.
#ifndef AMPD_ENGINE_BACKEND_CUDA_GRAPH_CACHE_H_
#define AMPD_ENGINE_BACKEND_CUDA_GRAPH_CACHE_H_

#include <cuda_runtime_api.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/status/statusor.h"
#include "engine/backend/cuda/handles.h"

namespace ampd::cuda {

// Kernels, copies and fills that a captured graph consists of.
absl::StatusOr<int64_t> NodesOf(const CapturedGraph& graph);

// Thread-compatible. Graphs that it gave up may still run: the driver frees them behind their last launch.
class GraphCache {
 public:
  struct Key {
    size_t bucket = 0;
    uint64_t phases = 0;  // bits
    int64_t steps = 1;
    auto operator<=>(const Key&) const = default;
  };

  GraphCache() = default;
  // Holds graphs of so many nodes together, but always the last one.
  explicit GraphCache(int64_t most_nodes) : most_nodes_(most_nodes) {}

  // Null where there is none.
  cudaGraphExec_t Find(const Key& key);
  // Makes `graph` ready, in the place of those that were launched longest ago. What is returned holds until the next
  // Add(). Errors are the driver's.
  absl::StatusOr<cudaGraphExec_t> Add(const Key& key, const CapturedGraph& graph);

  int64_t nodes() const { return nodes_; }

 private:
  struct Entry {
    GraphHandle graph;
    int64_t nodes = 0;
    uint64_t used = 0;
  };
  void MakeRoomFor(int64_t nodes);

  int64_t most_nodes_ = 0;
  int64_t nodes_ = 0;
  uint64_t uses_ = 0;
  std::map<Key, Entry> entries_;
};

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_GRAPH_CACHE_H_
