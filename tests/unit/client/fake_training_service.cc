#include "tests/unit/client/fake_training_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "ampd/v1/training_service.grpc.pb.h"
#include "google/rpc/status.pb.h"

namespace ampd::client {
namespace {

grpc::Status ToGrpc(const absl::Status& status) {
  google::rpc::Status details;
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    auto* detail = details.add_details();
    detail->set_type_url(std::string(url));
    detail->set_value(std::string(payload));
  });
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      details.SerializeAsString());
}

template <typename T>
T PopOr(std::deque<T>* queue, T otherwise) {
  if (queue->empty()) return otherwise;
  T front = queue->front();
  queue->pop_front();
  return front;
}

}  // namespace

class FakeTrainingService::Service : public v1::TrainingService::Service {
 public:
  explicit Service(FakeTrainingService* fake) : fake_(*fake) {}

  grpc::Status CreateJob(grpc::ServerContext*, const v1::CreateJobRequest* request, v1::Job* job) override {
    std::lock_guard<std::mutex> lock(fake_.mutex_);
    fake_.created.push_back(*request);
    *job = fake_.job;
    *job->mutable_spec() = request->spec();
    return ToGrpc(PopOr(&fake_.creates, absl::OkStatus()));
  }

  grpc::Status CreateSweep(grpc::ServerContext*, const v1::CreateSweepRequest* request, v1::JobSweep* sweep) override {
    std::lock_guard<std::mutex> lock(fake_.mutex_);
    fake_.sweeps_created.push_back(*request);
    sweep->set_id("01sweep");
    sweep->mutable_warnings()->Add(fake_.sweep_warnings.begin(), fake_.sweep_warnings.end());
    return grpc::Status::OK;
  }

  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* request, v1::Job* job) override {
    std::lock_guard<std::mutex> lock(fake_.mutex_);
    fake_.got.push_back(request->job_id());
    if (request->job_id() == fake_.unknown_job) return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such job");
    *job = fake_.job;
    return ToGrpc(fake_.get_status);
  }

  grpc::Status GetSweep(grpc::ServerContext*, const v1::GetSweepRequest*, v1::JobSweep* sweep) override {
    *sweep = fake_.sweep;
    return ToGrpc(fake_.sweep_status);
  }

  grpc::Status CreateToken(grpc::ServerContext*, const v1::CreateTokenRequest* request,
                           v1::CreateTokenResponse* response) override {
    response->mutable_token()->set_id("01token");
    response->mutable_token()->set_user(request->user());
    response->mutable_token()->set_role(request->role());
    response->set_secret("ampd_secret");
    return ToGrpc(fake_.token_status);
  }

  grpc::Status UpdateJob(grpc::ServerContext*, const v1::UpdateJobRequest*, v1::Job* job) override {
    *job = fake_.job;
    return ToGrpc(fake_.update_status);
  }

  grpc::Status CancelJob(grpc::ServerContext*, const v1::CancelJobRequest*, v1::Job* job) override {
    *job = fake_.job;
    return grpc::Status::OK;
  }

  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override {
    std::lock_guard<std::mutex> lock(fake_.mutex_);
    fake_.listed.push_back(*request);
    *response->add_jobs() = fake_.job;
    if (request->page_token().empty()) response->set_next_page_token("next");
    return ToGrpc(fake_.list_status);
  }

  grpc::Status ListSweeps(grpc::ServerContext*, const v1::ListSweepsRequest* request,
                          v1::ListSweepsResponse* response) override {
    std::lock_guard<std::mutex> lock(fake_.mutex_);
    fake_.sweeps_listed.push_back(*request);
    v1::SweepSummary* sweep = response->add_sweeps();
    sweep->set_id(absl::StrCat("01sweep", fake_.sweeps_listed.size()));
    sweep->set_name("grid");
    sweep->set_count(3);
    sweep->add_states()->set_state(v1::Job::QUEUED);
    sweep->mutable_states(0)->set_jobs(2);
    sweep->add_states()->set_state(v1::Job::FAILED);
    sweep->mutable_states(1)->set_jobs(1);
    if (request->page_token().empty()) response->set_next_page_token("next");
    return grpc::Status::OK;
  }

  grpc::Status ListDevices(grpc::ServerContext*, const v1::ListDevicesRequest*,
                           v1::ListDevicesResponse* response) override {
    auto* device = response->add_devices();
    device->set_id("cpu-0");
    device->set_kind(v1::Device::CPU);
    return grpc::Status::OK;
  }

  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*, v1::ServerInfo* info) override {
    info->set_version("9.9.9");
    for (const char* name : {"H100-SXM", "H100-PCIe", "CPU"}) info->add_device_models()->set_name(name);
    return grpc::Status::OK;
  }

  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::JobEvent>* writer) override {
    StreamScript script;
    {
      std::lock_guard<std::mutex> lock(fake_.mutex_);
      fake_.watched.push_back(*request);
      script = PopOr(&fake_.streams, StreamScript());
    }
    for (const v1::JobEvent& event : fake_.events) {
      if (event.sequence() > request->after_sequence() && event.sequence() <= script.until) writer->Write(event);
    }
    std::unique_lock<std::mutex> lock(fake_.mutex_);
    fake_.changed_.notify_all();
    // gRPC has no signal for a blocking handler; looking now and then is its way.
    while (script.hang && !context->IsCancelled()) fake_.changed_.wait_for(lock, std::chrono::milliseconds(5));
    lock.unlock();
    absl::SleepFor(script.quiet);
    return ToGrpc(script.status);
  }

  grpc::Status PlanJob(grpc::ServerContext*, const v1::PlanJobRequest* request, v1::PlanReport*) override {
    std::lock_guard<std::mutex> lock(fake_.mutex_);
    fake_.planned.push_back(*request);
    return ToGrpc(fake_.plan_status);
  }

  grpc::Status UploadModel(grpc::ServerContext*, grpc::ServerReader<v1::UploadModelRequest>* reader,
                           v1::UploadModelResponse* response) override {
    v1::UploadModelRequest request;
    if (!reader->Read(&request)) return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no message");
    const std::string checksum = request.sha256();
    response->set_path("upload:" + checksum);
    if (fake_.known_uploads.count(checksum) > 0) return grpc::Status::OK;
    std::string bytes = request.data();
    while (reader->Read(&request)) bytes += request.data();
    std::lock_guard<std::mutex> lock(fake_.mutex_);
    fake_.uploaded[checksum] = bytes;
    return ToGrpc(PopOr(&fake_.uploads, absl::OkStatus()));
  }

  grpc::Status ListDatasets(grpc::ServerContext*, const v1::ListDatasetsRequest*, v1::ListDatasetsResponse*) override {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such dataset");
  }

  grpc::Status UploadDataset(grpc::ServerContext*, grpc::ServerReader<v1::UploadDatasetRequest>* reader,
                             v1::Dataset* response) override {
    v1::UploadDatasetRequest request;
    while (reader->Read(&request)) {
      if (!request.name().empty()) response->set_name(request.name());
    }
    std::lock_guard<std::mutex> lock(fake_.mutex_);
    ++fake_.dataset_uploads_begun;
    return ToGrpc(PopOr(&fake_.dataset_uploads, absl::OkStatus()));
  }

  grpc::Status DownloadCheckpoint(grpc::ServerContext*, const v1::DownloadCheckpointRequest* request,
                                  grpc::ServerWriter<v1::FileChunk>* writer) override {
    fake_.downloaded.push_back(*request);
    const bool scripted = !fake_.checkpoint_downloads.empty();
    FakeTrainingService::DownloadScript script{SIZE_MAX, absl::OkStatus(), {}};
    if (scripted) script = fake_.checkpoint_downloads.front();
    if (scripted) fake_.checkpoint_downloads.pop_front();
    for (v1::FileChunk chunk : fake_.chunks) {
      if (!request->file().empty() && chunk.file() != request->file()) continue;
      const int64_t skipped = std::max<int64_t>(request->offset() - chunk.offset(), 0);
      if (skipped > 0 && skipped >= static_cast<int64_t>(chunk.data().size())) continue;
      chunk.mutable_data()->erase(0, static_cast<size_t>(skipped));
      chunk.set_offset(chunk.offset() + skipped);
      if (chunk.data().size() > script.bytes) chunk.mutable_data()->resize(script.bytes);
      script.bytes -= chunk.data().size();
      writer->Write(chunk);
      if (script.bytes == 0) break;
    }
    if (!script.then.empty()) fake_.chunks = script.then;
    return ToGrpc(scripted ? script.status : PopOr(&fake_.downloads, absl::OkStatus()));
  }

  grpc::Status ExportModel(grpc::ServerContext*, const v1::ExportModelRequest* request,
                           grpc::ServerWriter<v1::FileChunk>* writer) override {
    fake_.exported.push_back(*request);
    for (const v1::FileChunk& chunk : fake_.chunks) writer->Write(chunk);
    return ToGrpc(PopOr(&fake_.downloads, absl::OkStatus()));
  }

 private:
  FakeTrainingService& fake_;
};

struct FakeTrainingService::Server {
  std::unique_ptr<grpc::Server> grpc;
};

FakeTrainingService::FakeTrainingService() : service_(std::make_unique<Service>(this)) { Start(); }

FakeTrainingService::~FakeTrainingService() { Stop(); }

void FakeTrainingService::Start() {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address_, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(service_.get());
  server_ = std::make_unique<Server>();
  server_->grpc = builder.BuildAndStart();
  address_ = "127.0.0.1:" + std::to_string(port);
}

void FakeTrainingService::Stop() {
  if (server_ == nullptr) return;
  server_->grpc->Shutdown(std::chrono::system_clock::now());
  server_->grpc->Wait();
  server_.reset();
}

void FakeTrainingService::AwaitWatches(size_t count) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, std::chrono::seconds(20), [&] { return watched.size() >= count; });
}

std::vector<v1::JobEvent> ExampleEvents(int steps, v1::Job::State end) {
  std::vector<v1::JobEvent> events;
  const auto add = [&events]() -> v1::JobEvent& {
    v1::JobEvent& event = events.emplace_back();
    event.set_first_sequence(events.size());
    event.set_sequence(events.size());
    event.mutable_time()->set_seconds(1769860800 + static_cast<int64_t>(events.size()));
    return event;
  };
  for (const auto state : {v1::Job::QUEUED, v1::Job::STARTING, v1::Job::RUNNING}) {
    add().mutable_state_change()->set_to(state);
  }
  for (int i = 1; i <= steps; ++i) {
    v1::StepReport* step = add().mutable_step();
    step->set_first_step(i);
    step->set_last_step(i);
    step->set_total_steps(steps);
    v1::PhaseReport* phase = step->add_phases();
    phase->set_name("main");
    phase->set_loss(1.0 / i);
    phase->set_steps_applied(i);
  }
  add().mutable_evaluation()->set_accuracy(0.91);
  v1::StateChange* last = add().mutable_state_change();
  last->set_to(end);
  if (end == v1::Job::FAILED) {
    last->mutable_failure()->set_class_(v1::Failure::DATA);
    last->mutable_failure()->set_message("x.npy: truncated");
  }
  return events;
}

}  // namespace ampd::client
