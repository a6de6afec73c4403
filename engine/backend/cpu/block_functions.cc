#include "engine/backend/cpu/block_functions.h"

#include "engine/backend/cpu/parallel.h"

namespace ampd::cpu {
namespace {

using ir::OpKind;

AMPD_CPU_CLONES void AddLoop(const float* __restrict a, const float* __restrict b, int64_t n, float* __restrict y) {
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

// The negated comparison keeps NaN.
AMPD_CPU_CLONES void ReluLoop(const float* __restrict x, int64_t n, float* __restrict y) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] <= 0 ? 0.0f : x[i];
}

AMPD_CPU_CLONES void ReluGradLoop(const float* __restrict dy, const float* __restrict y, int64_t n,
                                  float* __restrict dx) {
  for (int64_t i = 0; i < n; ++i) dx[i] = y[i] <= 0 ? 0.0f : dy[i];
}

using UnaryLoop = void (*)(const float* x, int64_t n, float* y);
using BinaryLoop = void (*)(const float* a, const float* b, int64_t n, float* y);

BlockFunction Unary(UnaryLoop loop) {
  return [loop](const float* const* in, int64_t n, float* y) { loop(in[0], n, y); };
}

BlockFunction Binary(BinaryLoop loop) {
  return [loop](const float* const* in, int64_t n, float* y) { loop(in[0], in[1], n, y); };
}

}  // namespace

bool HasBlockFunction(OpKind op) { return op == OpKind::kCast || MakeBlockFunction(op, {}) != nullptr; }

BlockFunction MakeBlockFunction(OpKind op, const ir::Attributes&) {
  switch (op) {
    case OpKind::kAdd:
    case OpKind::kBiasAdd:
      return Binary(AddLoop);
    case OpKind::kRelu:
      return Unary(ReluLoop);
    case OpKind::kReluGrad:
      return Binary(ReluGradLoop);
    default:
      return nullptr;
  }
}

}  // namespace ampd::cpu
