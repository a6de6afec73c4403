#include "engine/backend/cuda/conv.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ampd::cuda {

std::string ConvKey(const ConvDesc& desc) {
  constexpr const char* kKinds[] = {"forward", "grad_input", "grad_filter"};
  constexpr const char* kFusions[] = {
      "", "+bias", "+bias+relu", "+statistics", "+relu_batch_norm_grad", "+scale_bias_relu"};
  const auto list = [](const auto& values) { return absl::StrJoin(values, "x"); };
  return absl::StrCat("conv ", kKinds[static_cast<int>(desc.kind)], kFusions[static_cast<int>(desc.fusion)], " image ",
                      list(desc.image), " filter ", list(desc.filter), " output ", list(desc.output), " strides ",
                      list(desc.strides), " dilations ", list(desc.dilations), " before ", list(desc.before), " after ",
                      list(desc.after), " groups ", desc.groups, " ", DTypeName(desc.operands), " to ",
                      DTypeName(desc.result), desc.tf32 ? " tf32" : "");
}

}  // namespace ampd::cuda
