#include "server/auth/permissions.h"

#include <map>

#include "absl/strings/str_cat.h"

namespace ampd {

const std::vector<MethodRule>& MethodRules() {
  constexpr bool kChanges = true;
  static const std::vector<MethodRule>& rules = *new std::vector<MethodRule>{
      {"/ampd.v1.TrainingService/GetServerInfo", v1::VIEWER},
      {"/ampd.v1.TrainingService/ListDevices", v1::VIEWER},
      {"/ampd.v1.TrainingService/GetJob", v1::VIEWER},
      {"/ampd.v1.TrainingService/ListJobs", v1::VIEWER},
      {"/ampd.v1.TrainingService/WatchJob", v1::VIEWER},
      {"/ampd.v1.TrainingService/GetSweep", v1::VIEWER},
      {"/ampd.v1.TrainingService/ListSweeps", v1::VIEWER},
      {"/ampd.v1.TrainingService/ListCheckpoints", v1::VIEWER},
      {"/ampd.v1.TrainingService/DownloadCheckpoint", v1::VIEWER},
      {"/ampd.v1.TrainingService/DownloadArtifact", v1::VIEWER},
      {"/ampd.v1.TrainingService/ExportModel", v1::VIEWER},
      {"/ampd.v1.TrainingService/ListDatasets", v1::VIEWER},
      // Reads specs and data of the caller's choice.
      {"/ampd.v1.TrainingService/PlanJob", v1::SUBMITTER},
      {"/ampd.v1.TrainingService/CreateJob", v1::SUBMITTER, kChanges, nullptr, "id"},
      {"/ampd.v1.TrainingService/CreateSweep", v1::SUBMITTER, kChanges, nullptr, "id"},
      {"/ampd.v1.TrainingService/CancelSweep", v1::SUBMITTER, kChanges, "sweep_id"},
      {"/ampd.v1.TrainingService/CancelJob", v1::SUBMITTER, kChanges, "job_id"},
      {"/ampd.v1.TrainingService/PauseJob", v1::SUBMITTER, kChanges, "job_id"},
      {"/ampd.v1.TrainingService/ResumeJob", v1::SUBMITTER, kChanges, "job_id"},
      {"/ampd.v1.TrainingService/RetryJob", v1::SUBMITTER, kChanges, "job_id"},
      {"/ampd.v1.TrainingService/UpdateJob", v1::SUBMITTER, kChanges, "job_id"},
      {"/ampd.v1.TrainingService/CheckpointJob", v1::SUBMITTER, kChanges, "job_id"},
      {"/ampd.v1.TrainingService/ProfileJob", v1::SUBMITTER, kChanges, "job_id"},
      {"/ampd.v1.TrainingService/UploadModel", v1::SUBMITTER, kChanges, "sha256"},
      {"/ampd.v1.TrainingService/UploadDataset", v1::SUBMITTER, kChanges, "name"},
      {"/ampd.v1.TrainingService/DeleteDataset", v1::SUBMITTER, kChanges, "name"},
      {"/ampd.v1.TrainingService/DrainDevice", v1::ADMIN, kChanges, "device_id"},
      {"/ampd.v1.TrainingService/UndrainDevice", v1::ADMIN, kChanges, "device_id"},
      {"/ampd.v1.TrainingService/DrainServer", v1::ADMIN, kChanges},
      {"/ampd.v1.TrainingService/CreateToken", v1::ADMIN, kChanges, "user", "token.id"},
      {"/ampd.v1.TrainingService/RevokeToken", v1::ADMIN, kChanges, "token_id", "id"},
      {"/ampd.v1.TrainingService/ListTokens", v1::ADMIN},
      // Load balancers and orchestrators ask without credentials; the answer is whether the server serves.
      {"/grpc.health.v1.Health/Check", v1::ROLE_UNSPECIFIED},
      {"/grpc.health.v1.Health/Watch", v1::ROLE_UNSPECIFIED},
      {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", v1::VIEWER},
  };
  return rules;
}

const MethodRule* FindMethodRule(absl::string_view path) {
  static const std::map<absl::string_view, const MethodRule*>& by_path = [] {
    auto* index = new std::map<absl::string_view, const MethodRule*>;
    for (const MethodRule& rule : MethodRules()) (*index)[rule.path] = &rule;
    return std::ref(*index);
  }();
  const auto found = by_path.find(path);
  return found == by_path.end() ? nullptr : found->second;
}

absl::Status CheckRole(const Caller& caller, absl::string_view path) {
  const MethodRule* rule = FindMethodRule(path);
  if (rule == nullptr) return absl::PermissionDeniedError(absl::StrCat(path, ": no role may call it"));
  // Roles are numbered from the least to the most.
  if (caller.role >= rule->role) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(path.substr(path.rfind('/') + 1), " needs the role ",
                                                  v1::Role_Name(rule->role), "; ", caller.user, " is ",
                                                  v1::Role_Name(caller.role)));
}

}  // namespace ampd
