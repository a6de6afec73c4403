// Which fields of a spec may name a file that its sender has, and not the server.
#ifndef AMPD_PROTO_SPEC_NAMED_FILES_H_
#define AMPD_PROTO_SPEC_NAMED_FILES_H_

#include <string>
#include <vector>

#include "ampd/v1/job.pb.h"

namespace ampd {

struct NamedFile {
  // Where it stands: "start_from.path", "sweep.list[3].start_from.path", "sweep.grid.model.onnx.path[0]".
  std::string field;
  // Within the spec; may be written to.
  std::string* path;
  // model.onnx.path: the model may have other files beside it.
  bool is_onnx = false;
};

// model.onnx.path and start_from.path, where they are set: the spec's own, then those that points of its sweep set,
// whether by these paths or within a value of a field around them. Of `spec`, which outlives them.
std::vector<NamedFile> NamedFiles(v1::JobSpec* spec);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_NAMED_FILES_H_
