// TrainingService's calls about uploaded datasets.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/service/answer.h"
#include "server/service/dataset_stream.h"
#include "server/service/dataset_use.h"
#include "server/service/grpc_status.h"
#include "server/service/training_service.h"

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

absl::Status TooMany() { return absl::UnavailableError("too many calls about datasets at once; try again"); }

}  // namespace

grpc::ServerReadReactor<v1::UploadDatasetRequest>* TrainingServiceImpl::UploadDataset(
    grpc::CallbackServerContext* context, v1::Dataset* response) {
  const absl::StatusOr<Caller> caller = Admit(*context, __func__);
  if (!caller.ok()) return RefusedUpload<v1::UploadDatasetRequest>::With(caller.status());
  return DatasetStream::Start(options_.submit.datasets, &dataset_writers_, "", response).get();
}

grpc::ServerUnaryReactor* TrainingServiceImpl::ListDatasets(grpc::CallbackServerContext* context,
                                                            const v1::ListDatasetsRequest* request,
                                                            v1::ListDatasetsResponse* response) {
  return Admitted(context, __func__, [&](const Caller&, grpc::ServerUnaryReactor* reactor) {
    const bool posted = readers_.Post([this, reactor, response, name = request->name()] {
      absl::StatusOr<v1::ListDatasetsResponse> list = List(*options_.submit.datasets, name);
      if (list.ok()) *response = *std::move(list);
      reactor->Finish(ToGrpcStatus(list.status()));
    });
    if (!posted) reactor->Finish(ToGrpcStatus(TooMany()));
  });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::DeleteDataset(grpc::CallbackServerContext* context,
                                                             const v1::DeleteDatasetRequest* request,
                                                             v1::DeleteDatasetResponse*) {
  return Admitted(context, __func__, [&](const Caller&, grpc::ServerUnaryReactor* reactor) {
    const std::string name = request->name();
    absl::StatusOr<std::shared_ptr<DatasetStore::Deletion>> begun = options_.submit.datasets->BeginDeletion(name);
    if (!begun.ok()) return reactor->Finish(ToGrpcStatus(begun.status()));
    // From here on no job can be submitted that names it; those that were are the controller's to know.
    const auto uses = [name](const v1::Job& job) { return DatasetsOf(job.spec()).count(name) > 0; };
    controller_->FindLiveJob(
        uses, [this, reactor, name, deletion = *std::move(begun)](absl::StatusOr<std::string> job) {
          if (job.ok() && job->empty()) {
            const auto finish = [reactor, deletion] { reactor->Finish(ToGrpcStatus(deletion->Finish())); };
            if (!dataset_writers_.Post(finish)) reactor->Finish(ToGrpcStatus(TooMany()));
            return;
          }
          reactor->Finish(ToGrpcStatus(job.ok() ? absl::FailedPreconditionError(absl::StrCat(
                                                      "job ", *job, " names dataset ", name, " and has not ended"))
                                                : job.status()));
        });
  });
}

}  // namespace ampd
