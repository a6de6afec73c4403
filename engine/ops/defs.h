// The files of engine/ops: each defines `std::vector<OpDef> <Name>Defs()`, the rows of its op and of that op's gradient
// ops. A new op's file is one line here.
#ifndef AMPD_ENGINE_OPS_DEFS_H_
#define AMPD_ENGINE_OPS_DEFS_H_

#include <vector>

#include "engine/ops/op_def.h"

#define AMPD_OP_FILES(X)  \
  /* Elementwise */       \
  X(Cast)                 \
  X(Add)                  \
  X(Relu)                 \
  X(Dropout)              \
  X(BiasAdd)              \
  /* Reductions */        \
  X(ReduceMean)           \
  /* Moving data */       \
  X(Reshape)              \
  /* Products, windows */ \
  X(Matmul)               \
  X(Conv2d)               \
  X(MaxPool2d)            \
  X(AvgPool2d)            \
  X(GlobalAvgPool)        \
  /* Norms, attention */  \
  X(BatchNorm)            \
  /* Sequences */         \
  /* Losses, metrics */   \
  X(SoftmaxCrossEntropy)  \
  X(SquaredError)         \
  X(ArgmaxEqual)          \
  /* 8-bit operands */    \
  X(Quantize)             \
  /* The backward pass */ \
  X(AccumulateGrad)

namespace ampd::ops {

#define X(name) std::vector<OpDef> name##Defs();
AMPD_OP_FILES(X)
#undef X

}  // namespace ampd::ops

#endif  // AMPD_ENGINE_OPS_DEFS_H_
