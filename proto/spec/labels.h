// A job's labels.
#ifndef AMPD_PROTO_SPEC_LABELS_H_
#define AMPD_PROTO_SPEC_LABELS_H_

#include <cstddef>
#include <vector>

#include "ampd/v1/job.pb.h"
#include "proto/spec/resolve.h"

namespace ampd {

inline constexpr int kMaxLabels = 64;
// Of a key and of a value.
inline constexpr size_t kMaxLabelBytes = 200;

// What is wrong with the labels of `spec`.
std::vector<FieldViolation> LabelViolations(const v1::JobSpec& spec);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_LABELS_H_
