// Sends a file or a folder of this machine to the server as a dataset, which jobs then name "dataset:NAME/PATH".
#ifndef AMPD_CLIENT_DATASET_UPLOAD_H_
#define AMPD_CLIENT_DATASET_UPLOAD_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ampd/v1/training_service.pb.h"
#include "client/connection.h"
#include "client/interrupt.h"

namespace ampd::client {

struct LocalDatasetFile {
  // On this machine.
  std::string source;
  // In the dataset, and its size and checksum.
  v1::DatasetFile file;
};

// The file `path`, under its own name, or every file beneath the folder `path`, by their paths from there, in the order
// of their bytes; all are read for their checksums. Links to files are followed. NOT_FOUND where there is none;
// INVALID_ARGUMENT, naming it, for a link to a folder, what is neither file nor folder, and a path that a dataset
// cannot have; CANCELLED when `interrupt` comes.
absl::StatusOr<std::vector<LocalDatasetFile>> ReadDataset(const std::string& path, Interrupt* interrupt);

struct DatasetUploadOptions {
  std::string name;
  std::string path;
  // How often in a row a call may break without a byte more having come, and how long to wait between.
  int attempts = 40;
  absl::Duration first_delay = absl::Milliseconds(200);
  absl::Duration last_delay = absl::Seconds(2);
};

// Sends what the server does not have, and again after the connection broke, from where it stopped; `log` is told.
// OK as well when the server has the whole dataset already. ALREADY_EXISTS when a dataset of the name has other files;
// FAILED_PRECONDITION when an upload that was begun has files that this one has not; CANCELLED when `interrupt` comes:
// what came is kept, and the next upload goes on from there.
absl::StatusOr<v1::Dataset> UploadDataset(const DatasetUploadOptions& options, Connection* connection,
                                          Interrupt* interrupt, std::ostream* log);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_DATASET_UPLOAD_H_
