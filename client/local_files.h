// Files of this machine that a job names: they are sent to the server, and the job names what was sent.
#ifndef AMPD_CLIENT_LOCAL_FILES_H_
#define AMPD_CLIENT_LOCAL_FILES_H_

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/job.pb.h"
#include "client/connection.h"
#include "client/interrupt.h"
#include "client/job_file.h"

namespace ampd::client {

// For the help of verbs that take job files.
inline constexpr char kLocalFilesHelp[] =
    "model.onnx.path and start_from.path, also as values of a sweep, may name a file of this machine: one that begins "
    "with\n"
    "./ or ../, or that is found there, relative to the job file's folder (of --set to the current one). It is sent to "
    "the\n"
    "server, unless that has it.\n"
    "Tensors of an ONNX model that lie in files beside it are sent with it. Any other path is the server's own, "
    "beneath\n"
    "its data roots.";

// The file of this machine that `path` means, where relative ones start from `folder`; empty: it is the server's.
// NOT_FOUND for one that begins with "./" or "../" and is not there or no regular file.
absl::StatusOr<std::string> LocalFileOf(const std::string& path, const std::string& folder);

// SHA-256 of a file's bytes, 64 hex digits. NOT_FOUND or DATA_LOSS, with the path, when it cannot be read.
absl::StatusOr<std::string> Sha256OfFile(const std::string& path);

// Sends the local files that `spec` names, made from `file`, and has it name the uploads: NamedFiles(), those of a
// sweep's points among them. Says on `log` what is sent
// (null: nothing). INVALID_ARGUMENT with the field for a file that is not there; else the server's errors.
absl::Status UploadLocalFiles(const JobFile& file, Connection* connection, Interrupt* interrupt, std::ostream* log,
                              v1::JobSpec* spec);

// What `--resume-from SOURCE` means: a file (one that is there, or that ends with .safetensors or has a '/') which
// relative to the current folder is this machine's, an upload, or JOB or JOB@CHECKPOINT.
absl::StatusOr<v1::WeightSource> ParseResumeFrom(const std::string& source);

// What `--continue-from SOURCE` means: the training of JOB, where its newest checkpoint, or that of JOB@CHECKPOINT,
// stands. INVALID_ARGUMENT for anything else.
absl::StatusOr<v1::WeightSource> ParseContinueFrom(const std::string& source);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_LOCAL_FILES_H_
