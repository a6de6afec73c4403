#include "engine/ops/rules.h"

#include "engine/core/status.h"
#include "engine/ir/printer.h"

namespace ampd::ops {

absl::Status BadNode(ir::OpKind op, const OpCall& call, const std::string& message) {
  return absl::InvalidArgumentError(absl::StrCat("[", ir::OpName(op), "] ", message, ", node ", call.name));
}

absl::Status RequireRank(ir::OpKind op, const OpCall& call, int i, int rank) {
  if (static_cast<int>(call.inputs[i].shape.size()) == rank) return absl::OkStatus();
  return BadNode(
      op, call, absl::StrCat("input ", i, " has shape ", ShapeString(call.inputs[i].shape), ", needs ", rank, " axes"));
}

absl::Status RequireShape(ir::OpKind op, const OpCall& call, int i, const Shape& shape) {
  if (call.inputs[i].shape == shape) return absl::OkStatus();
  return BadNode(
      op, call,
      absl::StrCat("input ", i, " has shape ", ShapeString(call.inputs[i].shape), ", needs ", ShapeString(shape)));
}

absl::Status RequireInts(ir::OpKind op, const OpCall& call, const char* name, size_t count, int64_t minimum,
                         std::vector<int64_t>* out) {
  *out = call.attributes.Ints(name);
  if (out->size() != count)
    return BadNode(op, call, absl::StrCat(name, " has ", out->size(), " numbers, needs ", count));
  for (int64_t v : *out) {
    if (v < minimum)
      return BadNode(op, call, absl::StrCat(name, " is ", ShapeString(*out), ", each must be >= ", minimum));
  }
  return absl::OkStatus();
}

absl::Status SameAsFirst(const OpCall& call, std::vector<ir::TensorType>* outputs) {
  outputs->push_back(call.inputs[0]);
  return absl::OkStatus();
}

absl::Status WindowOutput(ir::OpKind op, const OpCall& call, const Shape& input, const std::vector<int64_t>& kernel,
                          const std::vector<int64_t>& strides, const std::vector<int64_t>& pads, int64_t* out_h,
                          int64_t* out_w) {
  const int64_t h = input[1] + pads[0] + pads[2];
  const int64_t w = input[2] + pads[1] + pads[3];
  if (h < kernel[0] || w < kernel[1]) {
    return BadNode(op, call,
                   absl::StrCat("window ", ShapeString(kernel), " is larger than the padded input [", h, ", ", w, "]"));
  }
  *out_h = (h - kernel[0]) / strides[0] + 1;
  *out_w = (w - kernel[1]) / strides[1] + 1;
  return absl::OkStatus();
}

}  // namespace ampd::ops
