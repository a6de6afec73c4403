// Fetches a checkpoint, and goes on where a connection broke.
#ifndef AMPD_CLIENT_CHECKPOINT_DOWNLOAD_H_
#define AMPD_CLIENT_CHECKPOINT_DOWNLOAD_H_

#include "absl/status/status.h"
#include "ampd/v1/training_service.pb.h"
#include "client/checkpoint_writer.h"
#include "client/connection.h"

namespace ampd::client {

// All files of the checkpoint that `request` names into `writer`, which is new. Not committed.
absl::Status FetchCheckpoint(Connection* connection, const v1::DownloadCheckpointRequest& request,
                             CheckpointWriter* writer);

// What `writer` still lacks after FetchCheckpoint or ResumeCheckpoint broke off: the rest of the file it was at, and
// the files of MANIFEST that it does not have. It has begun a file. NOT_FOUND when the checkpoint is gone meanwhile;
// DATA_LOSS for a MANIFEST that cannot be read. Where another checkpoint took the name meanwhile, Commit() finds it.
absl::Status ResumeCheckpoint(Connection* connection, const v1::DownloadCheckpointRequest& request,
                              CheckpointWriter* writer);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_CHECKPOINT_DOWNLOAD_H_
