#include <iterator>
#include <utility>
#include <vector>

#include "engine/ops/defs.h"
#include "engine/ops/op_def.h"

namespace ampd::ops {
namespace {

std::vector<OpDef> MakeTable() {
  std::vector<OpDef> table(std::size(ir::kAllOpKinds));
  static constexpr std::vector<OpDef> (*kFiles[])() = {
#define X(name) name##Defs,
#include "engine/ops/op_files.def"
#undef X
  };
  for (auto* defs : kFiles) {
    for (OpDef& def : defs()) table[static_cast<size_t>(def.kind)] = std::move(def);
  }
  return table;
}

}  // namespace

const OpDef& GetOpDef(ir::OpKind kind) {
  static const auto& table = *new std::vector<OpDef>(MakeTable());
  return table[static_cast<size_t>(kind)];
}

}  // namespace ampd::ops
