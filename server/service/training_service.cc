#include "server/service/training_service.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/time_util.h"
#include "server/service/answer.h"
#include "server/service/checkpoint_manifest.h"
#include "server/service/checkpoint_range.h"
#include "server/service/download_stream.h"
#include "server/service/grpc_status.h"
#include "server/service/upload_stream.h"
#include "server/service/watch_stream.h"

namespace ampd {
namespace {

constexpr int kReaders = 4;
constexpr int kWriters = 2;
constexpr int kCheckers = 4;
// One read of each call at most waits, so this bounds the calls that stream at once.
constexpr size_t kMaxReads = 10000;
// Models exported at once, and calls that wait for their turn.
constexpr int kExporters = 2;
constexpr size_t kMaxExports = 64;

}  // namespace

TrainingServiceImpl::TrainingServiceImpl(Options options, Submitter::Planner planner, Controller* controller,
                                         EventLog* log)
    : options_(std::move(options)),
      controller_(controller),
      log_(log),
      submitter_(options_.submit, std::move(planner), controller),
      exporter_({options_.checkpoint_root, options_.mirror_root, options_.export_scratch_dir,
                 AllDataRoots(options_.submit.data_roots, options_.submit.datasets),
                 options_.uploads == nullptr ? "" : options_.uploads->folder(), options_.submit.workers},
                options_.export_runner),
      stalls_(options_.stall_limit, options_.submit.clock),
      readers_(kReaders, kMaxReads),
      file_readers_(kReaders, kMaxReads),
      checkpoint_checks_(kCheckers, kMaxReads),
      writers_(kWriters, kMaxReads),
      dataset_writers_(kWriters, kMaxReads),
      dataset_commits_(kWriters, kMaxReads),
      exports_(kExporters, kMaxExports) {}

grpc::ServerUnaryReactor* TrainingServiceImpl::CreateJob(grpc::CallbackServerContext* context,
                                                         const v1::CreateJobRequest* request, v1::Job* response) {
  return Admitted(context, __func__, [&](const Caller& caller, grpc::ServerUnaryReactor* reactor) {
    submitter_.Create(
        *request, caller, [context] { return context->IsCancelled(); }, Answer(reactor, response));
  });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::CreateSweep(grpc::CallbackServerContext* context,
                                                           const v1::CreateSweepRequest* request,
                                                           v1::JobSweep* response) {
  return Admitted(context, __func__, [&](const Caller& caller, grpc::ServerUnaryReactor* reactor) {
    submitter_.CreateSweep(
        *request, caller, [context] { return context->IsCancelled(); }, Answer(reactor, response));
  });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::GetSweep(grpc::CallbackServerContext* context,
                                                        const v1::GetSweepRequest* request, v1::JobSweep* response) {
  return Admitted(context, __func__, [&](const Caller& caller, grpc::ServerUnaryReactor* reactor) {
    controller_->GetSweep(request->sweep_id(), Answer(reactor, response), caller.Scope());
  });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::ListSweeps(grpc::CallbackServerContext* context,
                                                          const v1::ListSweepsRequest* request,
                                                          v1::ListSweepsResponse* response) {
  return Admitted(context, __func__, [&](const Caller& caller, grpc::ServerUnaryReactor* reactor) {
    controller_->ListSweeps(*request, Answer(reactor, response), caller.Scope());
  });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::CancelSweep(grpc::CallbackServerContext* context,
                                                           const v1::CancelSweepRequest* request,
                                                           v1::JobSweep* response) {
  return Admitted(context, __func__, [&](const Caller& caller, grpc::ServerUnaryReactor* reactor) {
    const bool now = request->now();
    OfOwnSweep(caller, request->sweep_id(), reactor, [this, now, reactor, response](const std::string& id) {
      controller_->CancelSweep(id, now, Answer(reactor, response));
    });
  });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::PlanJob(grpc::CallbackServerContext* context,
                                                       const v1::PlanJobRequest* request, v1::PlanReport* response) {
  return Admitted(context, __func__, [&](const Caller& caller, grpc::ServerUnaryReactor* reactor) {
    submitter_.PlanReport(
        *request, caller, [context] { return context->IsCancelled(); }, Answer(reactor, response));
  });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::GetJob(grpc::CallbackServerContext* context,
                                                      const v1::GetJobRequest* request, v1::Job* response) {
  return Admitted(context, __func__, [&](const Caller& caller, grpc::ServerUnaryReactor* reactor) {
    controller_->GetJob(request->job_id(), Answer(reactor, response), caller.Scope());
  });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::ListJobs(grpc::CallbackServerContext* context,
                                                        const v1::ListJobsRequest* request,
                                                        v1::ListJobsResponse* response) {
  return Admitted(context, __func__, [&](const Caller& caller, grpc::ServerUnaryReactor* reactor) {
    controller_->ListJobs(*request, Answer(reactor, response), caller.Scope());
  });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::CancelJob(grpc::CallbackServerContext* context,
                                                         const v1::CancelJobRequest* request, v1::Job* response) {
  return Admitted(context, __func__, [&](const Caller& caller, grpc::ServerUnaryReactor* reactor) {
    const bool now = request->now();
    OfOwnJob(caller, request->job_id(), reactor, [this, now, reactor, response](const std::string& id) {
      controller_->CancelJob(id, now, Answer(reactor, response));
    });
  });
}

grpc::ServerWriteReactor<v1::JobEvent>* TrainingServiceImpl::WatchJob(grpc::CallbackServerContext* context,
                                                                      const v1::WatchJobRequest* request) {
  const std::shared_ptr<WatchStream> stream = WatchStream::Create(log_, &readers_);
  const absl::StatusOr<Caller> caller = Admit(*context, __func__);
  if (!caller.ok()) {
    stream->Fail(caller.status());
    return stream.get();
  }
  // The controller knows what a prefix of an id stands for.
  controller_->FindJobId(
      request->job_id(),
      [stream, request = *request](const absl::StatusOr<std::string>& id) {
        if (!id.ok()) return stream->Fail(id.status());
        stream->Start(*id, request);
      },
      caller->Scope());
  return stream.get();
}

grpc::ServerUnaryReactor* TrainingServiceImpl::ListDevices(grpc::CallbackServerContext* context,
                                                           const v1::ListDevicesRequest*,
                                                           v1::ListDevicesResponse* response) {
  return Admitted(context, __func__, [&](const Caller&, grpc::ServerUnaryReactor* reactor) {
    controller_->ListDevices([reactor, response](absl::StatusOr<std::vector<v1::Device>> devices) {
      if (devices.ok()) response->mutable_devices()->Assign(devices->begin(), devices->end());
      reactor->Finish(ToGrpcStatus(devices.status()));
    });
  });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::GetServerInfo(grpc::CallbackServerContext* context,
                                                             const v1::GetServerInfoRequest*,
                                                             v1::ServerInfo* response) {
  return Admitted(context, __func__, [&](const Caller&, grpc::ServerUnaryReactor* reactor) {
    response->set_version(options_.version);
    response->add_apis("ampd.v1");
    *response->mutable_start_time() =
        google::protobuf::util::TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(options_.start_time));
    response->set_draining(controller_->draining());
    response->set_default_precision_mode(options_.submit.default_precision_mode);
    response->mutable_device_models()->Assign(options_.submit.device_models.begin(),
                                              options_.submit.device_models.end());
    reactor->Finish(grpc::Status::OK);
  });
}

grpc::ServerWriteReactor<v1::FileChunk>* TrainingServiceImpl::Download(grpc::CallbackServerContext* context,
                                                                       absl::string_view method,
                                                                       const std::string& job_id, FromJob from_job,
                                                                       WorkPool* open_in) {
  const std::shared_ptr<DownloadStream> stream = DownloadStream::Create(context, &file_readers_, &stalls_);
  const absl::StatusOr<Caller> caller = Admit(*context, method);
  if (!caller.ok()) {
    stream->Fail(caller.status());
    return stream.get();
  }
  controller_->GetJob(
      job_id,
      [stream, open_in, from_job = std::move(from_job)](absl::StatusOr<v1::Job> job) {
        if (!job.ok()) return stream->Fail(job.status());
        stream->Start([job = *std::move(job), from_job](Departure& caller) { return from_job(job, caller); }, open_in);
      },
      caller->Scope());
  return stream.get();
}

grpc::ServerWriteReactor<v1::FileChunk>* TrainingServiceImpl::DownloadCheckpoint(
    grpc::CallbackServerContext* context, const v1::DownloadCheckpointRequest* request) {
  // It is its own checksum, and short.
  WorkPool& pool = request->file() == kManifest ? file_readers_ : checkpoint_checks_;
  return Download(
      context, __func__, request->job_id(),
      [this, request = *request](const v1::Job& job, Departure& caller) {
        const Comparison comparison{[&caller] { return caller.has_gone(); }, &verified_};
        return OpenAskedFiles(FoldersOf(job.id(), job.summary().checkpoint()), request, comparison);
      },
      &pool);
}

grpc::ServerWriteReactor<v1::FileChunk>* TrainingServiceImpl::DownloadArtifact(
    grpc::CallbackServerContext* context, const v1::DownloadArtifactRequest* request) {
  return Download(
      context, __func__, request->job_id(),
      [this, name = request->name()](const v1::Job& job, Departure&) {
        return OpenArtifact(absl::StrCat(options_.artifact_root, "/", job.id()), name);
      },
      &file_readers_);
}

grpc::ServerReadReactor<v1::UploadModelRequest>* TrainingServiceImpl::UploadModel(grpc::CallbackServerContext* context,
                                                                                  v1::UploadModelResponse* response) {
  const absl::StatusOr<Caller> caller = Admit(*context, __func__);
  if (!caller.ok()) return Refused<grpc::ServerReadReactor<v1::UploadModelRequest>>::With(caller.status());
  return UploadStream::Start(options_.uploads, &writers_, &stalls_, caller->user, response).get();
}

grpc::ServerWriteReactor<v1::FileChunk>* TrainingServiceImpl::ExportModel(grpc::CallbackServerContext* context,
                                                                          const v1::ExportModelRequest* request) {
  return Download(
      context, __func__, request->job_id(),
      [this, request = *request](const v1::Job& job, Departure& caller) {
        return exporter_.Export(job, request, caller);
      },
      &exports_);
}

}  // namespace ampd
