// How two messages of one type differ, field by field. Pure.
#ifndef AMPD_PROTO_SPEC_DIFFERENCES_H_
#define AMPD_PROTO_SPEC_DIFFERENCES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "google/protobuf/message.h"

namespace ampd {

// A field that differs: "precision.mode", and the two values as the job file would say them; "-" where one has none.
struct FieldDifference {
  std::string field;
  std::string a, b;
};

// The field of an entry that stands for those that are left out; its `a` says how many they are: "3 more".
inline constexpr char kMoreFields[] = "...";

// In the order of the proto. At most `most`; the rest is one entry kMoreFields.
std::vector<FieldDifference> Differences(const google::protobuf::Message& a, const google::protobuf::Message& b,
                                         size_t most);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_DIFFERENCES_H_
