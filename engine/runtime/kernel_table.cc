#include "engine/runtime/kernel_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/ops/op_def.h"

namespace ampd::runtime {
namespace {

std::string DTypesString(const std::vector<DType>& dtypes) {
  return absl::StrCat(
      "(", absl::StrJoin(dtypes, ", ", [](std::string* out, DType d) { absl::StrAppend(out, DTypeName(d)); }), ")");
}

}  // namespace

KernelTable::Signature SignatureOf(const NodeDesc& desc) {
  const ops::OpDef& def = ops::GetOpDef(desc.op);
  const size_t listed = def.variadic ? std::min(desc.inputs.size(), def.inputs.size()) : desc.inputs.size();
  KernelTable::Signature signature;
  for (size_t i = 0; i < listed; ++i) signature.first.push_back(desc.inputs[i].dtype);
  for (const ir::TensorType& type : desc.outputs) signature.second.push_back(type.dtype);
  return signature;
}

absl::StatusOr<std::unique_ptr<Kernel>> KernelTable::Prepare(const NodeDesc& desc) const {
  if (auto any = any_dtypes_.find(desc.op); any != any_dtypes_.end()) return any->second(desc);
  const Signature signature = SignatureOf(desc);
  auto it = rows_.find({desc.op, signature});
  if (it == rows_.end()) {
    return absl::UnimplementedError(absl::StrCat("[", ir::OpName(desc.op), "] no kernel for ",
                                                 DTypesString(signature.first), " -> ", DTypesString(signature.second),
                                                 ", node ", desc.name));
  }
  return it->second(desc);
}

std::vector<std::pair<ir::OpKind, KernelTable::Signature>> KernelTable::Rows() const {
  std::vector<std::pair<ir::OpKind, Signature>> rows;
  for (const auto& [key, prepare] : rows_) rows.push_back(key);
  return rows;
}

}  // namespace ampd::runtime
