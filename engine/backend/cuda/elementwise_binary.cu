#include "engine/backend/cuda/elementwise_kernel.h"

namespace ampd::cuda {

void RegisterElementwiseBinary(runtime::KernelTable* table, Context* context) {
  const auto prepare = [context](const runtime::NodeDesc& desc) -> absl::StatusOr<std::unique_ptr<runtime::Kernel>> {
    switch (ops::FunctionOf(desc.op, desc.attributes)) {
#define X(op, function, inputs)               \
  case ops::ElementwiseFunction::k##function: \
    return PrepareElementwise<ops::ElementwiseFunction::k##function>(context, desc);
      AMPD_BINARY_FUNCTIONS(X, X)
#undef X
      default:
        return absl::InternalError(absl::StrCat("[", ir::OpName(desc.op), "] is not of this file, node ", desc.name));
    }
  };
#define X(op, function, inputs) RegisterSignatures(table, ir::OpKind::k##op, prepare);
  AMPD_BINARY_FUNCTIONS(X, X)
#undef X
  for (DType t : kDataTypes) table->Add(ir::OpKind::kBiasAdd, {t, t}, {t}, prepare);
}

}  // namespace ampd::cuda
