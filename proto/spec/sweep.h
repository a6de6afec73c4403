// Many jobs of one spec: the points of JobSpec.sweep.
#ifndef AMPD_PROTO_SPEC_SWEEP_H_
#define AMPD_PROTO_SPEC_SWEEP_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/job.pb.h"

namespace ampd {

// A spec and the values that each of its points sets, with the code of `--set`. Specs of points are made one at a time:
// all of them together may be large. Immutable.
class SweepExpansion {
 public:
  static constexpr int kMaxPoints = 10000;

  // `spec` has `sweep`. INVALID_ARGUMENT with violations: neither or both of grid and list, a path without values, no
  // point or more than 10,000, max_parallel below 1. The points' own specs are not looked at.
  static absl::StatusOr<SweepExpansion> Of(v1::JobSpec spec);

  int count() const { return count_; }
  // 0: no limit.
  int max_parallel() const { return max_parallel_; }

  // Of the point with this index, from 0.
  // What it sets, by path.
  google::protobuf::Struct ValuesOf(int index) const;
  // The spec with these values and without `sweep` and what the values replace (ClearReplaced() of alternatives.h), not
  // resolved. INVALID_ARGUMENT with a violation of the field, named as InPoint() names it, for a path that there is
  // not, or one within `sweep`, or a value of the wrong kind.
  absl::StatusOr<v1::JobSpec> SpecOf(int index) const;
  // What is wrong with the point's own spec, as what is wrong with the sweep's: the violation "train.batch_size: ..."
  // becomes "sweep.list[3].train.batch_size: ...", or "sweep.grid[3]...." and the values that this point of the grid
  // has. Any other error gets the point's name in front. OK stays OK.
  absl::Status InPoint(int index, const absl::Status& status) const;

 private:
  using Values = std::vector<std::pair<std::string, google::protobuf::Value>>;

  SweepExpansion() = default;
  Values SortedValues(int index) const;

  v1::JobSpec base_;
  bool is_grid_ = false;
  // By path, sorted.
  std::vector<std::pair<std::string, google::protobuf::ListValue>> grid_;
  std::vector<google::protobuf::Struct> list_;
  int count_ = 0;
  int max_parallel_ = 0;
};

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_SWEEP_H_
