// Where first weights come from.
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/names.h"
#include "proto/spec/resolve_internal.h"
#include "proto/spec/upload_path.h"

namespace ampd {
namespace {

constexpr size_t kMaxPathBytes = 4096;
constexpr size_t kLeastIdBytes = 4;
// Of a whole id, a ULID.
constexpr size_t kMostIdBytes = 26;
constexpr size_t kMostNameBytes = 64;
// The server has another name in its place once it has found which one that is.
constexpr char kBest[] = "best";

void CheckPath(const std::string& path, Violations* violations) {
  violations->CheckText("start_from.path", path, kMaxPathBytes);
  if (NamesUpload(path)) {
    if (!UploadChecksum(path).empty()) return;
    violations->Add("start_from.path",
                    absl::StrCat("must be \"upload:\" and a SHA-256 of 64 lower-case hex digits, is ", Quoted(path)));
  } else if (!path.empty() && !absl::EndsWith(path, ".safetensors")) {
    violations->Add("start_from.path", absl::StrCat("must be a .safetensors file, is ", Quoted(path)));
  }
}

void CheckJob(const std::string& job_id, Violations* violations) {
  if (job_id.size() >= kLeastIdBytes && job_id.size() <= kMostIdBytes && IsMadeOf(job_id, "")) return;
  violations->Add("start_from.job_id", absl::StrCat("must be a job's id, or a prefix of one of at least ",
                                                    kLeastIdBytes, " characters, is ", Quoted(job_id)));
}

void CheckCheckpoint(const v1::WeightSource& source, Violations* violations) {
  const std::string& name = source.checkpoint();
  if (name.empty()) return;
  if (source.source_case() == v1::WeightSource::kPath) {
    violations->Add("start_from.checkpoint", "goes with job_id: a path names one file");
  }
  if (name == kBest) return;
  const bool well_formed = absl::StartsWith(name, "step-") && name.size() > 5 && name.size() <= kMostNameBytes &&
                           name.find_first_not_of("0123456789", 5) == std::string::npos;
  if (!well_formed) {
    violations->Add("start_from.checkpoint",
                    absl::StrCat("must be a checkpoint's name, such as step-000000500, or best, is ", Quoted(name)));
  }
}

void CheckContinuing(const v1::JobSpec& spec, Violations* violations) {
  const char* const field = "start_from.continue_training";
  if (spec.start_from().source_case() == v1::WeightSource::kPath) {
    violations->Add(field, "goes with job_id: a file of weights is no training to go on with");
  }
  if (spec.start_from().allow_missing()) {
    violations->Add(field, "is not given with allow_missing: all of a training is taken, or none of it");
  }
  if (spec.has_bench()) violations->Add(field, "is not given with bench, which measures short runs of its own");
  if (spec.precision().mode() == v1::PrecisionSpec::AUTO) {
    violations->Add(field, "needs precision.mode to name the mode of that training, is AUTO");
  }
}

}  // namespace

void ResolveStartFrom(const v1::JobSpec& spec, Violations* violations) {
  const v1::WeightSource& source = spec.start_from();
  if (spec.bench().has_sweep()) {
    violations->Add("start_from", "is not given with bench.sweep, which measures single operations");
  }
  switch (source.source_case()) {
    case v1::WeightSource::kPath:
      CheckPath(source.path(), violations);
      break;
    case v1::WeightSource::kJobId:
      CheckJob(source.job_id(), violations);
      break;
    case v1::WeightSource::SOURCE_NOT_SET:
      violations->Add("start_from", "needs path, a file of weights, or job_id, a job of this server");
      break;
  }
  CheckCheckpoint(source, violations);
  if (source.continue_training()) CheckContinuing(spec, violations);
}

}  // namespace ampd
