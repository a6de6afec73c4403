// A job file that a client of the JSON API sends as text.
#ifndef AMPD_SERVER_WEB_SENT_JOB_FILE_H_
#define AMPD_SERVER_WEB_SENT_JOB_FILE_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ampd/v1/job.pb.h"
#include "proto/spec/yaml.h"
#include "server/http/exchange.h"

namespace ampd {

class SentJobFile {
 public:
  // Recurses as the text does (server/http/large_stack.h).
  explicit SentJobFile(absl::string_view text);

  // INVALID_ARGUMENT for what is no job file, and for one that names a file of the client's machine, which did not come
  // along: a path that begins with ./ or ../, as for `ampctl submit`, which sends it.
  const absl::Status& status() const { return status_; }
  // Where status() is OK.
  const v1::JobSpec& spec() const { return spec_; }

  // The answer for `status`, status() or an error of the service about spec(): each violation with its line.
  HttpResponse Refusal(const absl::Status& status) const;

 private:
  FieldLines lines_;
  std::vector<YamlError> errors_;
  v1::JobSpec spec_;
  absl::Status status_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_WEB_SENT_JOB_FILE_H_
