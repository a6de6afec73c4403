// Whether what a job evaluates on was trained on.
#ifndef AMPD_PROTO_SPEC_DATA_PARTS_H_
#define AMPD_PROTO_SPEC_DATA_PARTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ampd/v1/data.pb.h"

namespace ampd {

// Of a resolved spec: INVALID_ARGUMENT with a violation where data.train and data.eval are parts of one text, of one
// file of tokens or of one folder of drawings that overlap and are not the same part, and where both are glyphs of one
// seed. Who evaluates on the very part of a file that is trained on means to. A path may be spelled in several ways,
// and be absolute beneath one of `data_roots`; links are not followed. For a client's spec at submit, not part of
// ResolveJobSpec(): jobs from before go on.
absl::Status CheckDataParts(const v1::DataSpec& data, const std::vector<std::string>& data_roots = {});

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_DATA_PARTS_H_
