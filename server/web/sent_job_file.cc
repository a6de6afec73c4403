#include "server/web/sent_job_file.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/named_files.h"
#include "proto/spec/names.h"
#include "proto/spec/resolve.h"

namespace ampd {
namespace {

bool IsOfTheClient(absl::string_view path) { return absl::StartsWith(path, "./") || absl::StartsWith(path, "../"); }

absl::Status CheckPaths(v1::JobSpec* spec) {
  // A sweep may have 10,000 of them.
  constexpr size_t kMostTold = 20;
  std::vector<FieldViolation> violations;
  for (const NamedFile& file : NamedFiles(spec)) {
    if (violations.size() == kMostTold) break;
    if (!IsOfTheClient(*file.path)) continue;
    violations.push_back({file.field, absl::StrCat(Quoted(*file.path),
                                                   " is a file of the machine that submits, which did not come along: "
                                                   "submit with ampctl, which sends it, or name one beneath the "
                                                   "server's data roots, or upload:SHA256")});
  }
  return violations.empty() ? absl::OkStatus() : InvalidFields(violations);
}

}  // namespace

SentJobFile::SentJobFile(absl::string_view text) : status_(ParseYaml(text, "job file", &spec_, &lines_, &errors_)) {
  if (status_.ok()) status_ = CheckPaths(&spec_);
}

HttpResponse SentJobFile::Refusal(const absl::Status& status) const {
  std::vector<PlacedViolation> violations;
  for (const YamlError& error : errors_) violations.push_back({error.path, error.what, error.line});
  for (FieldViolation& violation : FieldViolationsOf(status)) {
    const int line = lines_.LineOf(violation.field);
    violations.push_back({std::move(violation.field), std::move(violation.description), line});
  }
  return ErrorResponse(status, std::nullopt, violations);
}

}  // namespace ampd
