// Tensors between their order in memory (channels last) and PyTorch's on disk.
#ifndef AMPD_ENGINE_TRAIN_DISK_LAYOUT_H_
#define AMPD_ENGINE_TRAIN_DISK_LAYOUT_H_

#include "engine/core/shape.h"
#include "engine/ir/graph.h"

namespace ampd::train {

// The tensor's shape on disk.
Shape DiskShape(const ir::Persistent& tensor);

// Copies a whole tensor of `tensor.type` from memory order into disk order. The two do not overlap.
void ToDisk(const ir::Persistent& tensor, const void* memory, void* disk);
// And back.
void FromDisk(const ir::Persistent& tensor, const void* disk, void* memory);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_DISK_LAYOUT_H_
