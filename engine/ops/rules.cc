#include "engine/ops/rules.h"

#include "engine/core/status.h"
#include "engine/ir/printer.h"

namespace ampd::ops {
namespace {

constexpr int64_t kMaxWindowNumber = int64_t{1} << 30;
constexpr int64_t kMaxImageExtent = int64_t{1} << 40;

}  // namespace

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

absl::Status BroadcastShape(ir::OpKind op, const OpCall& call, size_t first, Shape* shape) {
  shape->clear();
  for (size_t i = first; i < call.inputs.size(); ++i) {
    const Shape& s = call.inputs[i].shape;
    if (s.size() > shape->size()) shape->insert(shape->begin(), s.size() - shape->size(), 1);
    for (size_t d = 0; d < s.size(); ++d) {
      int64_t& extent = (*shape)[shape->size() - s.size() + d];
      if (extent == 1) extent = s[d];
      if (s[d] == 1 || s[d] == extent) continue;
      return BadNode(
          op, call,
          absl::StrCat("input ", i, " has shape ", ShapeString(s), ", does not broadcast with ", ShapeString(*shape)));
    }
  }
  return absl::OkStatus();
}

absl::Status RequireAxis(ir::OpKind op, const OpCall& call, const char* name, int64_t fallback, size_t rank,
                         size_t* axis) {
  const int64_t given = call.attributes.Int(name, fallback);
  const int64_t axes = static_cast<int64_t>(rank);
  if (given < -axes || given >= axes) {
    return BadNode(op, call, absl::StrCat(name, " is ", given, ", must be in [", -axes, ", ", axes, ")"));
  }
  *axis = AxisOf(call.attributes, name, fallback, rank);
  return absl::OkStatus();
}

DType SumDType(GradientContext& c, int i) {
  const ir::Graph& graph = c.graph();
  const bool of_parameter = graph.values[MovedFrom(graph, c.input(i))].kind == ir::ValueKind::kParameter;
  return of_parameter ? DType::kF32 : c.input_type(i).dtype;
}

ir::ValueId SumToInput(GradientContext& c, ir::ValueId gradient, int i, const std::string& suffix) {
  const ir::TensorType& input = c.input_type(i);
  if (gradient < 0 || c.graph().type(gradient).shape == input.shape) return gradient;
  const std::string dtype(DTypeName(SumDType(c, i)));
  return c.Emit(ir::OpKind::kSumTo, {gradient}, {{"shape", ToInts(input.shape)}, {"dtype", dtype}}, suffix)[0];
}

absl::Status ReadWindow(ir::OpKind op, const OpCall& call, Window* window) {
  AMPD_RETURN_IF_ERROR(RequireInts(op, call, "strides", 2, 1, &window->strides));
  AMPD_RETURN_IF_ERROR(RequireInts(op, call, "pads", 4, 0, &window->pads));
  window->dilations = {1, 1};
  if (call.attributes.Has("dilations")) {
    AMPD_RETURN_IF_ERROR(RequireInts(op, call, "dilations", 2, 1, &window->dilations));
  }
  for (const auto* numbers : {&window->strides, &window->pads, &window->dilations}) {
    for (int64_t v : *numbers) {
      if (v > kMaxWindowNumber) return BadNode(op, call, absl::StrCat("window number ", v, " is above 2^30"));
    }
  }
  return absl::OkStatus();
}

absl::Status WindowOutput(ir::OpKind op, const OpCall& call, const Shape& input, const std::vector<int64_t>& size,
                          const Window& window, int64_t* out_h, int64_t* out_w) {
  int64_t extents[2];
  for (int axis = 0; axis < 2; ++axis) {
    if (size[axis] < 1 || size[axis] > kMaxWindowNumber || input[axis + 1] < 1 || input[axis + 1] > kMaxImageExtent) {
      return BadNode(op, call,
                     absl::StrCat("window ", ShapeString(size), " over ", ShapeString(input), " is out of range"));
    }
    extents[axis] = input[axis + 1] + window.pads[axis] + window.pads[axis + 2];
  }
  const int64_t span_h = window.Span(size, 0), span_w = window.Span(size, 1);
  if (extents[0] < span_h || extents[1] < span_w) {
    return BadNode(op, call,
                   absl::StrCat("window ", ShapeString(std::vector<int64_t>{span_h, span_w}),
                                " is larger than the padded input [", extents[0], ", ", extents[1], "]"));
  }
  *out_h = (extents[0] - span_h) / window.strides[0] + 1;
  *out_w = (extents[1] - span_w) / window.strides[1] + 1;
  return absl::OkStatus();
}

absl::Status ReadGroups(ir::OpKind op, const OpCall& call, int64_t* groups) {
  *groups = call.attributes.Int("groups", 1);
  if (*groups >= 1) return absl::OkStatus();
  return BadNode(op, call, absl::StrCat("groups is ", *groups, ", must be at least 1"));
}

}  // namespace ampd::ops
