#include "proto/spec/labels.h"

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/names.h"

namespace ampd {

std::vector<FieldViolation> LabelViolations(const v1::JobSpec& spec) {
  if (spec.labels_size() > kMaxLabels) {
    return {{"labels", absl::StrCat("must be at most ", kMaxLabels, ", are ", spec.labels_size())}};
  }
  std::vector<FieldViolation> violations;
  for (const auto& [key, value] : spec.labels()) {
    const std::string field = absl::StrCat("labels.", absl::CHexEscape(Cut(key, kMaxLabelBytes)));
    if (key.empty()) violations.push_back({"labels", "a key must not be empty"});
    if (key.size() > kMaxLabelBytes) {
      violations.push_back(
          {field, absl::StrCat("the key must be at most ", kMaxLabelBytes, " bytes, is ", key.size())});
    }
    if (value.size() > kMaxLabelBytes) {
      violations.push_back({field, absl::StrCat("must be at most ", kMaxLabelBytes, " bytes, is ", value.size())});
    }
  }
  return violations;
}

}  // namespace ampd
