#include "engine/backend/cuda/graph_cache.h"

#include <algorithm>
#include <utility>

#include "engine/core/status.h"

namespace ampd::cuda {

absl::StatusOr<int64_t> NodesOf(const CapturedGraph& graph) {
  size_t count = 0;
  AMPD_CUDA_RETURN_IF_ERROR(cudaGraphGetNodes(graph.get(), nullptr, &count), "counting a step's kernels");
  return static_cast<int64_t>(count);
}

cudaGraphExec_t GraphCache::Find(const Key& key) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return nullptr;
  it->second.used = ++uses_;
  return it->second.graph.get();
}

absl::StatusOr<cudaGraphExec_t> GraphCache::Add(const Key& key, const CapturedGraph& graph) {
  AMPD_ASSIGN_OR_RETURN(const int64_t nodes, NodesOf(graph));
  MakeRoomFor(nodes);
  AMPD_ASSIGN_OR_RETURN(GraphHandle ready, GraphHandle::Instantiate(graph));
  Entry& entry = entries_[key];
  nodes_ += nodes - entry.nodes;
  entry = {std::move(ready), nodes, ++uses_};
  return entry.graph.get();
}

void GraphCache::MakeRoomFor(int64_t nodes) {
  while (!entries_.empty() && nodes_ + nodes > most_nodes_) {
    const auto oldest = std::min_element(entries_.begin(), entries_.end(),
                                         [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
    nodes_ -= oldest->second.nodes;
    entries_.erase(oldest);
  }
}

}  // namespace ampd::cuda
