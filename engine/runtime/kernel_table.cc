#include "engine/runtime/kernel_table.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ampd::runtime {
namespace {

std::string DTypesString(const std::vector<DType>& dtypes) {
  return absl::StrCat(
      "(", absl::StrJoin(dtypes, ", ", [](std::string* out, DType d) { absl::StrAppend(out, DTypeName(d)); }), ")");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Kernel>> KernelTable::Prepare(const NodeDesc& desc) const {
  Signature signature;
  for (const ir::TensorType& type : desc.inputs) signature.first.push_back(type.dtype);
  for (const ir::TensorType& type : desc.outputs) signature.second.push_back(type.dtype);
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
