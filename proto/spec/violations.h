// Collects what is wrong with a spec, field by field. Internal to proto/spec.
#ifndef AMPD_PROTO_SPEC_VIOLATIONS_H_
#define AMPD_PROTO_SPEC_VIOLATIONS_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/spec/resolve.h"

namespace ampd {

// A range of real numbers, written in messages as mathematics writes it: "[0, 1)", "> 0".
struct Interval {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;
  bool high_open = false;

  bool Contains(double value) const;
  std::string ToString() const;
};

class Violations {
 public:
  void Add(std::string field, std::string description);

  // Each adds a violation when `value` is out of range.
  void CheckInteger(absl::string_view field, int64_t value, int64_t low, int64_t high);
  // Values that are not finite are passed over: CheckWellFormed has reported them.
  void CheckReal(absl::string_view field, double value, const Interval& interval);
  // Not empty, at most `max_bytes`, no control characters.
  void CheckText(absl::string_view field, absl::string_view value, size_t max_bytes);
  void AddUnsupported(absl::string_view field) { Add(std::string(field), "not supported yet"); }

  const std::vector<FieldViolation>& list() const { return list_; }
  bool empty() const { return list_.empty(); }
  // True once nothing more is kept; costly descriptions need not be made.
  bool full() const { return list_.size() >= kMax; }

 private:
  // Bounds the answer to a hostile spec; nobody reads more.
  static constexpr size_t kMax = 200;
  std::vector<FieldViolation> list_;
};

// Of a field's name in an answer, which may be one that somebody made up.
inline constexpr size_t kMostFieldBytes = 300;

// "model.layers" and 2 -> "model.layers[2]".
inline std::string Indexed(absl::string_view field, int index) { return absl::StrCat(field, "[", index, "]"); }

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_VIOLATIONS_H_
