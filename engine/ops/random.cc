// Random numbers without an input: functions of seed, step, sample, element and stream, as dropout's.
#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

// Far above any memory, and small enough that products of extents cannot overflow.
constexpr double kMaxElements = 1e12;

template <OpKind kOp>
absl::Status InferRandom(const OpCall& call, std::vector<TensorType>* outputs) {
  const auto ints = call.attributes.Ints("shape");
  const Shape shape(ints.begin(), ints.end());
  double elements = 1;
  for (int64_t extent : shape) {
    if (extent < 1) return BadNode(kOp, call, absl::StrCat("shape is ", ShapeString(shape), ", extents must be >= 1"));
    elements *= static_cast<double>(extent);
  }
  if (shape.empty()) return BadNode(kOp, call, "shape has no batch axis");
  if (elements > kMaxElements) return BadNode(kOp, call, "shape has more than 10^12 elements");
  outputs->push_back({DType::kF32, shape});
  return absl::OkStatus();
}

template <OpKind kOp>
OpDef RandomDef() {
  return {.kind = kOp, .precision = PrecisionClass::kFixed, .output_suffixes = {""}, .infer = InferRandom<kOp>};
}

}  // namespace

std::vector<OpDef> RandomDefs() { return {RandomDef<OpKind::kRandomNormal>(), RandomDef<OpKind::kRandomUniform>()}; }

}  // namespace ampd::ops
