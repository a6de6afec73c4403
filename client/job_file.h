// A job file and what was changed of it on the command line.
#ifndef AMPD_CLIENT_JOB_FILE_H_
#define AMPD_CLIENT_JOB_FILE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/job.pb.h"
#include "proto/spec/resolve.h"
#include "proto/spec/yaml.h"

namespace ampd::client {

class JobFile {
 public:
  // Reads `path` ("-" is standard input) and applies `sets` in order. INVALID_ARGUMENT with one line for each error,
  // NOT_FOUND when there is no such file.
  static absl::StatusOr<JobFile> Read(const std::string& path, const std::vector<std::string>& sets);
  static absl::StatusOr<JobFile> Parse(const std::string& text, const std::string& name,
                                       const std::vector<std::string>& sets);

  const v1::JobSpec& spec() const { return spec_; }

  // The folder that relative paths in the field at `path` start from: the file's, or the current one where the field
  // was set on the command line or the file is standard input.
  std::string FolderOf(const std::string& path) const;

  // "job.yaml:12: train.batch_size: must be ..." for a field the file has, "--set train.batch_size=0: ..." for one set
  // on the command line, "job.yaml: ..." otherwise.
  std::string Explain(const FieldViolation& violation) const;

 private:
  // Of --set, the newest that holds `path`; null: none does.
  const std::string* SetOf(const std::string& path) const;

  std::string name_;
  std::string folder_ = ".";
  std::vector<std::string> sets_;
  FieldLines lines_;
  v1::JobSpec spec_;
};

}  // namespace ampd::client

#endif  // AMPD_CLIENT_JOB_FILE_H_
