// One kernel for every elementwise op: blocks of all operands, broadcast and converted, through the op's block
// function.
#include <algorithm>
#include <array>
#include <type_traits>
#include <vector>

#include "engine/backend/cpu/block_functions.h"
#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/strided.h"
#include "engine/ops/elementwise_functions.h"

namespace ampd::cpu {
namespace {

using ir::OpKind;
using runtime::KernelArgs;
using runtime::NodeDesc;

template <typename From, typename To>
void ConvertLoop(const void* from, int64_t n, To* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<To>(static_cast<const From*>(from)[i]);
}

// Dense elements as blocks hold them.
void Widen(DType dtype, const void* from, int64_t n, float* to) {
  if (IsFloat(dtype)) return ToF32(dtype, from, n, to);
  ConvertLoop<uint8_t>(from, n, to);
}

void Widen(DType dtype, const void* from, int64_t n, int64_t* to) {
  if (dtype == DType::kI32) return ConvertLoop<int32_t>(from, n, to);
  if (dtype == DType::kI64) return ConvertLoop<int64_t>(from, n, to);
  ConvertLoop<uint8_t>(from, n, to);
}

void Narrow(const float* from, int64_t n, DType dtype, void* to) {
  if (IsFloat(dtype)) return FromF32(from, n, dtype, to);
  for (int64_t i = 0; i < n; ++i) static_cast<uint8_t*>(to)[i] = from[i] != 0 ? 1 : 0;
}

void Narrow(const int64_t* from, int64_t n, DType dtype, void* to) {
  if (dtype == DType::kI32) return ConvertLoop<int64_t>(from, n, static_cast<int32_t*>(to));
  if (dtype == DType::kI64) return ConvertLoop<int64_t>(from, n, static_cast<int64_t*>(to));
  ConvertLoop<int64_t>(from, n, static_cast<uint8_t*>(to));
}

template <typename T>
constexpr DType kNative = std::is_same_v<T, float> ? DType::kF32 : DType::kI64;

// How an operand comes to lie beside the output.
struct Operand {
  // Elements after which it repeats, when that is at most a block: read once, then an offset into the repeats. Else 0.
  int64_t period = 0;
  StridedView view;
};

Operand MakeOperand(const Shape& from, const Shape& to) {
  Operand operand{0, BroadcastView(from, to)};
  const StridedView& v = operand.view;
  if (v.contiguous()) return operand;
  int64_t period = 0;
  if (v.extents.size() == 1 && v.strides[0] == 0) period = 1;
  if (v.extents.size() == 2 && v.strides[0] == 0 && v.strides[1] == 1) period = v.extents[1];
  if (period <= kBlock) operand.period = period;
  return operand;
}

// One operand's blocks, for one thread.
template <typename T>
class BlockReader {
 public:
  BlockReader(const Operand& operand, const TensorView& tensor, int64_t elements, T* buffer)
      : operand_(operand), tensor_(tensor), buffer_(buffer) {
    if (operand.period == 0 || elements == 0) return;
    Widen(tensor.dtype, tensor.data, operand.period, buffer);
    const int64_t length = std::min(kBlock, elements) + operand.period;
    for (int64_t i = operand.period; i < length; ++i) buffer[i] = buffer[i - operand.period];
  }

  const T* Read(int64_t first, int64_t n) const {
    if (operand_.period != 0) return buffer_ + first % operand_.period;
    const int64_t bytes = SizeOf(tensor_.dtype);
    if (operand_.view.contiguous()) {
      if (tensor_.dtype == kNative<T>) return tensor_.as<T>() + first;
      Widen(tensor_.dtype, tensor_.as<char>() + first * bytes, n, buffer_);
      return buffer_;
    }
    if (tensor_.dtype == kNative<T>) {
      ReadStrided(operand_.view, bytes, tensor_.data, first, n, buffer_);
      return buffer_;
    }
    alignas(64) char raw[kBlock * sizeof(int64_t)];
    ReadStrided(operand_.view, bytes, tensor_.data, first, n, raw);
    Widen(tensor_.dtype, raw, n, buffer_);
    return buffer_;
  }

 private:
  const Operand& operand_;
  const TensorView& tensor_;
  T* buffer_;
};

struct ElementwiseKernel {
  int threads = 1;
  std::vector<Operand> operands;
  ops::ElementwiseConstants constants;

  template <typename T>
  void RunPart(BlockLoop<T> function, const KernelArgs& args, int64_t begin, int64_t end) const {
    // A block and as much again for repeats.
    alignas(64) T buffers[kMaxBlockInputs][2 * kBlock];
    alignas(64) T out[kBlock];
    const size_t count = operands.size();
    const auto reader = [&](size_t k) {
      const size_t i = std::min(k, count - 1);
      return BlockReader<T>(operands[i], args.inputs[i], k < count ? end - begin : 0, buffers[k]);
    };
    const std::array<BlockReader<T>, kMaxBlockInputs> readers = {reader(0), reader(1), reader(2)};
    const TensorView& y = args.outputs[0];
    const bool in_place = y.dtype == kNative<T>;
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t m = std::min(kBlock, end - i);
      const T* inputs[kMaxBlockInputs];
      for (size_t k = 0; k < count; ++k) inputs[k] = readers[k].Read(i, m);
      T* target = in_place ? y.as<T>() + i : out;
      function(inputs, m, constants, target);
      if (!in_place) Narrow(target, m, y.dtype, y.as<char>() + i * SizeOf(y.dtype));
    }
  }

  template <typename T>
  void Run(BlockLoop<T> function, const KernelArgs& args) const {
    const int64_t n = args.outputs[0].size();
    ParallelRange(PartsFor(threads, n, kMinElementsPerThread), n, kBlock,
                  [&](int, int64_t begin, int64_t end) { RunPart(function, args, begin, end); });
  }
};

std::unique_ptr<runtime::Kernel> PrepareElementwise(const NodeDesc& desc) {
  const BlockOp& row = *FindBlockOp(desc.op);
  ElementwiseKernel kernel{desc.threads, {}, ops::ConstantsOf(desc.op, desc.attributes)};
  bool floats = row.integers == nullptr;
  for (const ir::TensorType& input : desc.inputs) {
    kernel.operands.push_back(MakeOperand(input.shape, desc.outputs[0].shape));
    floats = floats || IsFloat(input.dtype);
  }
  if (floats) {
    return MakeKernel(0, [kernel = std::move(kernel), function = FloatsOf(row, desc.attributes)](
                             const KernelArgs& args) { kernel.Run(function, args); });
  }
  return MakeKernel(
      0, [kernel = std::move(kernel), function = row.integers](const KernelArgs& args) { kernel.Run(function, args); });
}

}  // namespace

void RegisterElementwise(runtime::KernelTable* table) {
  for (absl::Span<const BlockOp> rows : {UnaryBlockOps(), ActivationBlockOps(), BinaryBlockOps()}) {
    for (const BlockOp& row : rows) {
      for (auto& [inputs, outputs] : ops::ElementwiseSignatures(row.op)) {
        table->Add(row.op, inputs, outputs, PrepareElementwise);
      }
    }
  }
}

}  // namespace ampd::cpu
