// TrainingService's calls about uploaded datasets.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/service/answer.h"
#include "server/service/dataset_stream.h"
#include "server/service/grpc_status.h"
#include "server/service/training_service.h"
#include "server/service/try_again.h"

namespace ampd {
namespace {

absl::StatusOr<v1::ListDatasetsResponse> List(const DatasetStore& datasets, const std::string& name) {
  v1::ListDatasetsResponse response;
  if (name.empty()) {
    for (v1::Dataset& dataset : datasets.List()) *response.add_datasets() = std::move(dataset);
    return response;
  }
  absl::StatusOr<v1::Dataset> dataset = datasets.Get(name);
  if (!dataset.ok()) return dataset.status();
  *response.add_datasets() = *std::move(dataset);
  return response;
}

// `job` is empty where it is not for the caller to see.
absl::Status InUse(const std::string& name, const std::string& job) {
  return absl::FailedPreconditionError(absl::StrCat(job.empty() ? "another user's job" : absl::StrCat("job ", job),
                                                    " names dataset ", name, " and has not ended"));
}

absl::Status TooMany() { return TryAgain("too many calls about datasets at once; try again", absl::Seconds(1)); }

}  // namespace

grpc::ServerReadReactor<v1::UploadDatasetRequest>* TrainingServiceImpl::UploadDataset(
    grpc::CallbackServerContext* context, v1::Dataset* response) {
  const absl::StatusOr<Caller> caller = Admit(*context, __func__);
  if (!caller.ok()) return Refused<grpc::ServerReadReactor<v1::UploadDatasetRequest>>::With(caller.status());
  return DatasetStream::Start(options_.submit.datasets, {&dataset_writers_, &dataset_commits_, &stalls_}, caller->user,
                              response)
      .get();
}

grpc::ServerUnaryReactor* TrainingServiceImpl::ListDatasets(grpc::CallbackServerContext* context,
                                                            const v1::ListDatasetsRequest* request,
                                                            v1::ListDatasetsResponse* response) {
  return Admitted(context, __func__, [&](const Caller&, grpc::ServerUnaryReactor* reactor) {
    const bool posted = file_readers_.Post([this, reactor, response, name = request->name()] {
      Answer(reactor, response)(List(*options_.submit.datasets, name));
    });
    if (!posted) reactor->Finish(ToGrpcStatus(TooMany()));
  });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::DeleteDataset(grpc::CallbackServerContext* context,
                                                             const v1::DeleteDatasetRequest* request,
                                                             v1::DeleteDatasetResponse*) {
  return Admitted(context, __func__, [&](const Caller& caller, grpc::ServerUnaryReactor* reactor) {
    DeleteOwnDataset(request->name(), caller.Scope(), reactor);
  });
}

void TrainingServiceImpl::DeleteOwnDataset(const std::string& name, const Owner& owner,
                                           grpc::ServerUnaryReactor* reactor) {
  absl::StatusOr<std::shared_ptr<DatasetStore::Deletion>> begun = options_.submit.datasets->BeginDeletion(name, owner);
  if (!begun.ok()) return reactor->Finish(ToGrpcStatus(begun.status()));
  // From here on no job can be submitted that names it; those that were are the controller's to know.
  controller_->FindDatasetUse(
      name, owner, [this, reactor, name, deletion = *std::move(begun)](absl::StatusOr<DatasetUse> use) {
        // Given up before the answer: who has it finds the dataset as it was.
        const auto refuse = [&](const absl::Status& status) {
          deletion->GiveUp();
          reactor->Finish(ToGrpcStatus(status));
        };
        if (!use.ok()) return refuse(use.status());
        if (use->used) return refuse(InUse(name, use->job_id));
        const auto finish = [reactor, deletion] { reactor->Finish(ToGrpcStatus(deletion->Finish())); };
        if (!dataset_writers_.Post(finish)) refuse(TooMany());
      });
}

}  // namespace ampd
