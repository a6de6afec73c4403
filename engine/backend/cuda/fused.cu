#include <algorithm>

#include "engine/backend/cuda/fused_chains.h"
#include "engine/backend/cuda/fused_machine.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/launch.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

constexpr int kThreads = 128;
// Without asking for more.
constexpr int64_t kSharedBytes = 48 << 10;

template <int N>
__global__ void __launch_bounds__(kThreads) RunFused(const FusedProgram program) {
  Interpret<N, kThreads>(program, PlainAddresses(), DynamicShared<float4>());
}

// Elements that a thread takes at once: 16 bytes of the widest operand.
int WidthOf(const runtime::NodeDesc& desc, const FusedProgram& program) {
  const auto is_wide = [&](const ir::TensorType& type) {
    return SizeOf(type.dtype) == 4 && NumElements(type.shape) == program.size;
  };
  const bool wide = std::any_of(desc.inputs.begin(), desc.inputs.end(), is_wide) ||
                    std::any_of(desc.outputs.begin(), desc.outputs.end(), is_wide) ||
                    program.slots * int64_t{8 * sizeof(float)} * kThreads > kSharedBytes;
  return wide ? 4 : 8;
}

absl::StatusOr<std::unique_ptr<runtime::Kernel>> Prepare(const Context* context, const runtime::NodeDesc& desc) {
  AMPD_ASSIGN_OR_RETURN(CompiledFused compiled, CompileFused(desc));
  if (auto kernel = PrepareChain(context, desc, compiled)) return kernel;
  const int width = WidthOf(desc, compiled.program);
  const unsigned blocks = BlocksFor(CeilDiv(compiled.program.size, width), kThreads, context->properties().sm_count);
  const int64_t shared = compiled.program.slots * width * int64_t{sizeof(float)} * kThreads;
  return MakeKernel(0, [=, name = desc.name](const runtime::KernelArgs& args) {
    FusedProgram program = compiled.program;
    for (size_t place = 0; place < compiled.inputs.size(); ++place) {
      program.inputs[place].data = args.inputs[compiled.inputs[place]].data;
    }
    for (size_t i = 0; i < args.outputs.size(); ++i) program.outputs[i].data = args.outputs[i].data;
    return Launch(name, width == 8 ? RunFused<8> : RunFused<4>, blocks, kThreads, shared, context->stream(), program);
  });
}

}  // namespace

void RegisterFused(runtime::KernelTable* table, Context* context) {
  table->AddForAnyDTypes(ir::OpKind::kFused,
                         [context](const runtime::NodeDesc& desc) { return Prepare(context, desc); });
}

}  // namespace ampd::cuda
