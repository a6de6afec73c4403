// A job file and what was changed of it on the command line.
#ifndef AMPD_CLIENT_JOB_FILE_H_
#define AMPD_CLIENT_JOB_FILE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ampd/v1/job.pb.h"
#include "proto/spec/resolve.h"
#include "proto/spec/yaml.h"

namespace ampd::client {

class JobFile {
 public:
  // Reads `path` ("-" is standard input), applies `sets` in order, and drops what they replace of the file
  // (ClearReplaced() of proto/spec/alternatives.h). INVALID_ARGUMENT with one line for each error, NOT_FOUND when there
  // is no such file.
  static absl::StatusOr<JobFile> Read(const std::string& path, const std::vector<std::string>& sets);
  static absl::StatusOr<JobFile> Parse(const std::string& text, const std::string& name,
                                       const std::vector<std::string>& sets);

  // Of a field that has an option of its own: applies `set` behind those before, and tells errors of the field as those
  // of `option`, as its user wrote it: "--gpus 4". INVALID_ARGUMENT, with the option's name.
  absl::Status SetByOption(const std::string& option, const std::string& set);
  // Likewise of the field at `path`, which the caller fills by itself.
  void NoteOption(const std::string& option, const std::string& path);

  const v1::JobSpec& spec() const { return spec_; }

  // The folder that relative paths in the field at `path` start from: the file's, or the current one where the field
  // was set on the command line or the file is standard input.
  std::string FolderOf(const std::string& path) const;

  // "job.yaml:12: train.batch_size: must be ..." for a field the file has, "--set train.batch_size=0: ..." or "--gpus
  // 4:
  // ..." for one set on the command line, also as points of a sweep have it, "job.yaml: ..." otherwise.
  std::string Explain(const FieldViolation& violation) const;

 private:
  // What the command line changed.
  struct Change {
    std::string path;
    // As it was written: "--set seed=3".
    std::string text;
  };
  // The newest that holds `path`; null: none does.
  const Change* ChangeOf(absl::string_view path) const;

  std::string name_;
  std::string folder_ = ".";
  std::vector<Change> changes_;
  FieldLines lines_;
  v1::JobSpec spec_;
};

}  // namespace ampd::client

#endif  // AMPD_CLIENT_JOB_FILE_H_
