// Constants that are all zeros, which hold no data: a batch may be planned that is far too large to be made.
#ifndef AMPD_ENGINE_IR_ZEROS_H_
#define AMPD_ENGINE_IR_ZEROS_H_

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/ir/graph.h"
#include "engine/ir/printer.h"

namespace ampd::ir {

inline constexpr char kZerosPrefix[] = "zeros:";

// A new one. Graphs that go on to be imported, exported or rewritten by their constants' numbers must have none.
inline ValueId AddZeros(Graph* graph, const TensorType& type) {
  graph->values.push_back(
      {.name = absl::StrCat(kZerosPrefix, TypeString(type)), .type = type, .kind = ValueKind::kConstant});
  return static_cast<ValueId>(graph->values.size()) - 1;
}

// Whether it was made so: any other constant without data has lost it.
inline bool IsZeros(const Value& value) {
  return value.kind == ValueKind::kConstant && value.data == nullptr && absl::StartsWith(value.name, kZerosPrefix);
}

}  // namespace ampd::ir

#endif  // AMPD_ENGINE_IR_ZEROS_H_
