// What of a checkpoint a DownloadCheckpoint call asks for.
#ifndef AMPD_SERVER_SERVICE_CHECKPOINT_RANGE_H_
#define AMPD_SERVER_SERVICE_CHECKPOINT_RANGE_H_

#include "absl/status/statusor.h"
#include "ampd/v1/training_service.pb.h"
#include "server/service/checkpoint_copies.h"

namespace ampd {

// Opens what `request` asks for in a job's `folders`: a whole checkpoint, or one file of it, or a range of the file.
// What is opened is compared with its checksums, of a range the whole file, but for what `comparison` knows already.
// INVALID_ARGUMENT with violations for a range without file and checkpoint, or a negative one; OUT_OF_RANGE beyond the
// file's end; NOT_FOUND for a file that the checkpoint does not have; else OpenAnyCopy's errors.
absl::StatusOr<OpenCheckpoint> OpenAskedFiles(const CheckpointFolders& folders,
                                              const v1::DownloadCheckpointRequest& request,
                                              const Comparison& comparison = {});

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_CHECKPOINT_RANGE_H_
