// The uploaded datasets that jobs name.
#ifndef AMPD_SERVER_SERVICE_DATASET_USE_H_
#define AMPD_SERVER_SERVICE_DATASET_USE_H_

#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "ampd/v1/job.pb.h"
#include "server/service/dataset_store.h"

namespace ampd {

// The names in "dataset:NAME/PATH" that `spec` has; what is no such path is passed over.
std::set<std::string> DatasetsOf(const v1::JobSpec& spec);

// Keeps the datasets that the resolved `spec` names from being deleted until the job is there, which then does that
// itself. INVALID_ARGUMENT with a violation for each path whose dataset is not there, or not whole, or does not have
// it; `datasets` null: there are none. ABORTED, with google.rpc.RetryInfo, while one may be about to go. Null where it
// names none.
absl::StatusOr<std::shared_ptr<DatasetStore::Hold>> HoldDatasets(const v1::JobSpec& spec, DatasetStore* datasets);

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_DATASET_USE_H_
