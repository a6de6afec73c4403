// Which paths of datasets, models and weights a job may name.
#ifndef AMPD_SERVER_SERVICE_DATA_PATHS_H_
#define AMPD_SERVER_SERVICE_DATA_PATHS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ampd/v1/job.pb.h"

namespace ampd {

// A path that a spec names.
struct NamedPath {
  // E.g. "data.train.idx.images".
  std::string field;
  std::string path;
  // Of a model or weights, which may be an upload; else of a dataset.
  bool is_model = false;
};

// Every path of `spec` that is not empty: all that planning and training read.
std::vector<NamedPath> PathsOf(const v1::JobSpec& spec);

// INVALID_ARGUMENT with a violation for each path of `spec` that has a ".." component, is absolute and not beneath one
// of `data_roots` (absolute, without a '/' at the end), or is relative where there are no roots. Names of uploads
// are no paths (server/service/start_source.h, server/service/dataset_use.h). Whether files exist is not looked at, and
// symbolic links are the reader's to check: data may be put in place after the submit.
absl::Status CheckDataPaths(const v1::JobSpec& spec, const std::vector<std::string>& data_roots);

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_DATA_PATHS_H_
