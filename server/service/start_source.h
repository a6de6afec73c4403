// The uploads and checkpoints that a job names: whether they are there, and which checkpoint it is to be.
#ifndef AMPD_SERVER_SERVICE_START_SOURCE_H_
#define AMPD_SERVER_SERVICE_START_SOURCE_H_

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/job.pb.h"
#include "server/jobs/start_folders.h"
#include "server/service/upload_store.h"

namespace ampd {

// The checksums of the uploads that `spec` names; what names none rightly is passed over.
std::set<std::string> UploadsOf(const v1::JobSpec& spec);

// INVALID_ARGUMENT with a violation for each upload that the resolved `spec` names and `uploads` (null: there are none)
// does not have. Those that it has count as used now.
absl::Status CheckUploads(const v1::JobSpec& spec, UploadStore* uploads);

// The job of an id or a prefix of one; errors as Controller::GetJob's.
using JobFinder = std::function<absl::StatusOr<v1::Job>(const std::string& id)>;

// As ControllerOptions::checkpoint_root and mirror_root.
struct CheckpointRoots {
  std::string own;
  // Empty: none.
  std::string mirror;
};

// Chooses the checkpoint that `source`, which names a job, asks for, the newest that is whole where it names none;
// writes the job's whole id and the checkpoint's name into it, and holds in `starts` its weights, or with
// continue_training all of it. What is held is read and compared with its checksums. The mirror's copy takes the place
// of one that is damaged or gone, as in OpenAnyCopy(). INVALID_ARGUMENT with the field for a job or checkpoint that is
// not there, or when it, or every one, is damaged; CANCELLED once `is_left`, which is asked again and again, says that
// nobody waits any more; else the file system's error.
absl::StatusOr<std::shared_ptr<HeldWeights>> HoldStart(const JobFinder& find, const CheckpointRoots& roots,
                                                       const StartFolders& starts, v1::WeightSource* source,
                                                       const std::function<bool()>& is_left);

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_START_SOURCE_H_
