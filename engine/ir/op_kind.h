// Every operation a graph can hold, from op_kinds.def. What each one means stands in engine/ops, one file per op.
#ifndef AMPD_ENGINE_IR_OP_KIND_H_
#define AMPD_ENGINE_IR_OP_KIND_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace ampd::ir {

enum class OpKind : uint8_t {
#define X(kind, name) kind,
#include "engine/ir/op_kinds.def"
#undef X
};

inline constexpr OpKind kAllOpKinds[] = {
#define X(kind, name) OpKind::kind,
#include "engine/ir/op_kinds.def"
#undef X
};

// As printed, e.g. "conv2d_grad_input".
absl::string_view OpName(OpKind kind);

}  // namespace ampd::ir

#endif  // AMPD_ENGINE_IR_OP_KIND_H_
