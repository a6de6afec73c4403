// Fields of a spec that exclude each other without being a oneof, such as train.epochs and train.steps.
#ifndef AMPD_PROTO_SPEC_ALTERNATIVES_H_
#define AMPD_PROTO_SPEC_ALTERNATIVES_H_

#include <string>
#include <vector>

#include "google/protobuf/message.h"

namespace ampd {

// Of `message`, in which the fields at `paths` (as ApplySet() has them: "train.steps") have been set, clears what they
// take the place of: a field that excludes one of them. It stays where that one was cleared, and where a path names it
// too, or something within or around it: of two that were both set none goes before the other.
void ClearReplaced(const std::vector<std::string>& paths, google::protobuf::Message* message);

// The path of the field that the one at `path` of `message` excludes; empty: none, or that one is not set.
std::string ExcludedBy(const std::string& path, const google::protobuf::Message& message);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_ALTERNATIVES_H_
