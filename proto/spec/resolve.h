// The one place where a job spec is validated and its defaults are filled in. The daemon resolves at submit; a worker
// resolves again what it receives, so that nothing unvalidated reaches the engine.
#ifndef AMPD_PROTO_SPEC_RESOLVE_H_
#define AMPD_PROTO_SPEC_RESOLVE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/job.pb.h"

namespace ampd {

// A JobSpec that is valid on its own terms (ranges, required fields, names, supported features) and has every default
// filled in. Only ResolveJobSpec makes one. Whether shapes fit is known after planning, not here. Immutable.
class ResolvedJobSpec {
 public:
  const v1::JobSpec& proto() const { return spec_; }

 private:
  friend absl::StatusOr<ResolvedJobSpec> ResolveJobSpec(v1::JobSpec spec);
  explicit ResolvedJobSpec(v1::JobSpec spec) : spec_(std::move(spec)) {}
  v1::JobSpec spec_;
};

// What is wrong with one field. `field` is a path such as "train.batch_size" or "model.layers[2].conv2d.kernel".
struct FieldViolation {
  std::string field;
  std::string description;
};

// Fills defaults and checks everything that can be known without data or a model's shapes. Idempotent: resolving a
// resolved spec gives it back. On failure INVALID_ARGUMENT that lists every violation; FieldViolationsOf() reads them.
// A field that is not supported yet is refused by name.
absl::StatusOr<ResolvedJobSpec> ResolveJobSpec(v1::JobSpec spec);

// INVALID_ARGUMENT whose message joins the violations as "field: description; ..." and which carries them as a
// google.rpc.BadRequest payload (type URL "type.googleapis.com/google.rpc.BadRequest"). Of a field there are at most
// the first 300 bytes, of a description 1,000, and how many there were more: both may quote what somebody sent.
absl::Status InvalidFields(const std::vector<FieldViolation>& violations);

// The violations that `status` carries; empty for any other status.
std::vector<FieldViolation> FieldViolationsOf(const absl::Status& status);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_RESOLVE_H_
