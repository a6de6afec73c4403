#include "server/service/training_service.h"

#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/service/sha256.h"
#include "tests/unit/server/service/service_fixture.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Fields of the google.rpc.BadRequest that an error carries.
std::vector<std::string> ViolatedFields(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), status.error_code());
  std::vector<std::string> fields;
  for (const google::protobuf::Any& any : details.details()) {
    google::rpc::BadRequest bad;
    if (!any.UnpackTo(&bad)) continue;
    for (const auto& violation : bad.field_violations()) fields.push_back(violation.field());
  }
  return fields;
}

absl::StatusOr<train::Outcome> ThreeEvents(FakeTrainer& trainer) {
  for (const char* text : {"a", "b", "c"}) EXPECT_TRUE(trainer.Emit(text).ok());
  return train::Outcome::kCompleted;
}

class TrainingServiceTest : public ServiceFixture {};

TEST_F(TrainingServiceTest, AJobRunsFromSubmitToItsLastEvent) {
  Train(ThreeEvents);
  const std::string id = CreateGood();
  std::vector<v1::JobEvent> events;
  ASSERT_TRUE(Watch(id, 0, &events).ok());
  ExpectGapless(events, 0);
  EXPECT_THAT(Logs(events), ElementsAre("a", "b", "c"));
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().state_change().to(), v1::Job::SUCCEEDED);
  const v1::Job job = Get(id.substr(0, 20));
  EXPECT_EQ(job.id(), id);
  EXPECT_EQ(job.state(), v1::Job::SUCCEEDED);
  EXPECT_EQ(job.plan().parameters(), 7850);
  EXPECT_EQ(job.spec().train().batch_size(), 32) << "defaults are filled in";
}

TEST_F(TrainingServiceTest, ValidateOnlyDoesAllButCreate) {
  Train(ThreeEvents);
  v1::CreateJobRequest request = GoodRequest();
  request.set_validate_only(true);
  v1::Job job;
  ASSERT_TRUE(Create(request, &job).ok());
  EXPECT_THAT(job.id(), IsEmpty());
  EXPECT_EQ(job.plan().parameters(), 7850);
  grpc::ClientContext context;
  v1::ListJobsResponse list;
  ASSERT_TRUE(stub_->ListJobs(&context, {}, &list).ok());
  EXPECT_EQ(list.jobs_size(), 0);
}

TEST_F(TrainingServiceTest, JobsThatNameNoModeGetTheServers) {
  Train(ThreeEvents);
  const auto mode = [this](v1::PrecisionSpec::Mode asked) {
    v1::CreateJobRequest request = GoodRequest();
    request.set_validate_only(true);
    if (asked != v1::PrecisionSpec::MODE_UNSPECIFIED) request.mutable_spec()->mutable_precision()->set_mode(asked);
    v1::Job job;
    EXPECT_TRUE(Create(request, &job).ok());
    return job.spec().precision().mode();
  };
  EXPECT_EQ(mode(v1::PrecisionSpec::MODE_UNSPECIFIED), v1::PrecisionSpec::BF16);
  EXPECT_EQ(mode(v1::PrecisionSpec::FP32), v1::PrecisionSpec::FP32);
  grpc::ClientContext context;
  v1::ServerInfo info;
  ASSERT_TRUE(stub_->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.default_precision_mode(), v1::PrecisionSpec::BF16);
}

TEST_F(TrainingServiceTest, ABadSpecNamesItsFields) {
  Train(ThreeEvents);
  v1::CreateJobRequest request = GoodRequest();
  request.mutable_spec()->mutable_train()->set_batch_size(0);
  v1::Job job;
  grpc::Status status = Create(request, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(ViolatedFields(status), ElementsAre("train.batch_size"));

  request = GoodRequest();
  request.mutable_spec()->mutable_data()->mutable_train()->mutable_idx()->set_images("/etc/passwd");
  request.mutable_spec()->mutable_data()->mutable_train()->mutable_idx()->set_labels("labels");
  status = Create(request, &job);
  EXPECT_THAT(ViolatedFields(status), ElementsAre("data.train.idx.images"));
  EXPECT_THAT(status.error_message(), HasSubstr("outside the data roots"));

  request = GoodRequest();
  (*request.mutable_spec()->mutable_labels())["big"] = std::string(20000, 'x');
  EXPECT_THAT(Create(request, &job).error_message(), HasSubstr("at most 10000"));

  request = GoodRequest();
  request.set_request_id(std::string(201, 'r'));
  EXPECT_THAT(ViolatedFields(Create(request, &job)), ElementsAre("request_id"));
}

TEST_F(TrainingServiceTest, AModeThatNoDeviceCanDoIsRefused) {
  v1::Device& t4 = devices_.emplace_back();
  t4.set_id("GPU-a");
  t4.set_kind(v1::Device::CUDA);
  t4.set_name("Tesla T4");
  t4.mutable_gpu()->set_compute_capability_major(7);
  t4.mutable_gpu()->set_compute_capability_minor(5);
  Train(ThreeEvents);
  v1::CreateJobRequest request = GoodRequest();
  request.set_validate_only(true);
  v1::Job job;
  const grpc::Status refused = Create(request, &job);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(ViolatedFields(refused), ElementsAre("precision.mode"));
  EXPECT_THAT(refused.error_message(),
              HasSubstr("BF16 needs compute capability 8.0 or later; Tesla T4 (GPU-a) has 7.5"));
  request.mutable_spec()->mutable_precision()->set_mode(v1::PrecisionSpec::FP16);
  const grpc::Status taken = Create(request, &job);
  EXPECT_TRUE(taken.ok()) << taken.error_message();
}

TEST_F(TrainingServiceTest, AJobOfMoreDevicesThanAUserMayHoldIsRefused) {
  devices_ = CpuDevices(4).value();
  user_limits_.max_running_devices = 2;
  Train(ThreeEvents);
  v1::CreateJobRequest request = GoodRequest();
  request.mutable_spec()->mutable_train()->set_batch_size(12);
  request.mutable_spec()->mutable_resources()->set_gpus(3);
  v1::Job job;
  for (const bool validate_only : {false, true}) {
    request.set_validate_only(validate_only);
    const grpc::Status refused = Create(request, &job);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(ViolatedFields(refused), ElementsAre("resources.gpus"));
    EXPECT_THAT(refused.error_message(), HasSubstr("is 3; a user's jobs may hold at most 2 at the same time"));
    EXPECT_THAT(refused.error_message(), HasSubstr("max_running_devices_per_user"));
  }
  // The second point of a sweep.
  v1::CreateSweepRequest sweep;
  *sweep.mutable_spec() = request.spec();
  auto& gpus = (*sweep.mutable_spec()->mutable_sweep()->mutable_grid())["resources.gpus"];
  for (const int count : {2, 3}) gpus.add_values()->set_number_value(count);
  grpc::ClientContext context;
  v1::JobSweep created;
  const grpc::Status refused = stub_->CreateSweep(&context, sweep, &created);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("is 3; a user's jobs may hold at most 2"));
  request.mutable_spec()->mutable_resources()->set_gpus(2);
  const grpc::Status taken = Create(request, &job);
  EXPECT_TRUE(taken.ok()) << taken.error_message();
}

TEST_F(TrainingServiceTest, WhatThePlannerRefusesIsRefused) {
  Train(ThreeEvents);
  SetPlanner([this](const v1::PlanRequest& request) {
    EXPECT_EQ(request.spec().train().batch_size(), 32);
    EXPECT_THAT(request.data_roots(), ElementsAre("/data", "dataset:" + state_dir_ + "/datasets"));
    v1::PlanResponse response;
    response.add_errors()->set_field("model.layers[0]");
    response.mutable_errors(0)->set_description("[dense] needs features, node head");
    return response;
  });
  v1::Job job;
  grpc::Status status = Create(GoodRequest(), &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(ViolatedFields(status), ElementsAre("model.layers[0]"));

  SetPlanner([](const v1::PlanRequest&) -> absl::StatusOr<v1::PlanResponse> {
    return absl::InternalError("the planner was ended by signal 11");
  });
  status = Create(GoodRequest(), &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(status.error_message(), HasSubstr("signal 11"));
}

TEST_F(TrainingServiceTest, DataThatIsMissingIsNoErrorAtSubmit) {
  Train(ThreeEvents);
  SetPlanner([](const v1::PlanRequest&) {
    v1::PlanResponse response;
    response.set_data_error("data.train: no such file");
    return response;
  });
  for (const bool validate_only : {true, false}) {
    v1::CreateJobRequest request = GoodRequest();
    request.set_validate_only(validate_only);
    v1::Job job;
    ASSERT_TRUE(Create(request, &job).ok());
    EXPECT_THAT(job.plan().warnings(), ElementsAre(HasSubstr("data.train: no such file; the job fails unless")));
  }
  for (const bool validate_only : {true, false}) {
    v1::CreateSweepRequest request;
    *request.mutable_spec() = GoodRequest().spec();
    auto& seeds = (*request.mutable_spec()->mutable_sweep()->mutable_grid())["seed"];
    for (const int seed : {1, 2}) seeds.add_values()->set_number_value(seed);
    request.set_validate_only(validate_only);
    grpc::ClientContext context;
    v1::JobSweep sweep;
    const grpc::Status status = stub_->CreateSweep(&context, request, &sweep);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_THAT(sweep.warnings(), ElementsAre(HasSubstr("no such file"))) << "once";
  }
}

TEST_F(TrainingServiceTest, ARepeatedRequestIsHarmlessAndPlansOnce) {
  Train(ThreeEvents);
  std::atomic<int> planned = 0;
  SetPlanner([&](const v1::PlanRequest&) {
    ++planned;
    return v1::PlanResponse();
  });
  v1::CreateJobRequest request = GoodRequest();
  request.set_request_id("once");
  v1::Job first, second;
  ASSERT_TRUE(Create(request, &first).ok());
  ASSERT_TRUE(Create(request, &second).ok());
  EXPECT_EQ(first.id(), second.id());
  EXPECT_EQ(planned, 1);
  request.mutable_spec()->set_name("other");
  EXPECT_EQ(Create(request, &second).error_code(), grpc::StatusCode::ALREADY_EXISTS);
}

TEST_F(TrainingServiceTest, WatchingGoesOnAfterWhatWasSeen) {
  Train(ThreeEvents);
  const std::string id = CreateGood();
  std::vector<v1::JobEvent> all, rest, none;
  ASSERT_TRUE(Watch(id, 0, &all).ok());
  ASSERT_TRUE(Watch(id, 2, &rest).ok());
  ExpectGapless(rest, 2);
  EXPECT_EQ(rest.size(), all.size() - 2);
  // One who has seen the terminal event is not kept waiting.
  ASSERT_TRUE(Watch(id, all.back().sequence(), &none).ok());
  EXPECT_THAT(none, IsEmpty());
  EXPECT_EQ(Watch(id, all.back().sequence() + 1, &none).error_code(), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(Watch("01hzzzzzzzzzzzzzzzzzzzzzzz", 0, &none).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(TrainingServiceTest, ASlowWatcherMissesNothingAndDelaysNobody) {
  constexpr int kEvents = 3000;
  std::promise<void> written;
  Train([&](FakeTrainer& trainer) -> absl::StatusOr<train::Outcome> {
    for (int i = 0; i < kEvents; ++i) EXPECT_TRUE(trainer.Emit(std::string(1000, 'x')).ok());
    written.set_value();
    return train::Outcome::kCompleted;
  });
  const std::string id = CreateGood();
  std::vector<v1::JobEvent> events;
  // Reads its first event, then nothing until the trainer wrote 3 MB.
  ASSERT_TRUE(Watch(id, 0, &events, [&](const v1::JobEvent& event) {
                if (event.sequence() == 1) written.get_future().wait();
                return false;
              }).ok());
  ExpectGapless(events, 0);
  EXPECT_EQ(Logs(events).size(), static_cast<size_t>(kEvents));
}

TEST_F(TrainingServiceTest, AWatcherThatLeavesHarmsNobody) {
  Train([](FakeTrainer& trainer) -> absl::StatusOr<train::Outcome> {
    EXPECT_TRUE(trainer.Emit("first").ok());
    trainer.AwaitCommands(1);
    return train::Outcome::kStopped;
  });
  const std::string id = CreateGood();
  std::vector<v1::JobEvent> events;
  const auto until_log = [](const v1::JobEvent& event) { return event.has_log(); };
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Watch(id, 0, &events, until_log).error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_EQ(Get(id).state(), v1::Job::RUNNING);
  grpc::ClientContext context;
  v1::CancelJobRequest cancel;
  cancel.set_job_id(id);
  v1::Job job;
  ASSERT_TRUE(stub_->CancelJob(&context, cancel, &job).ok());
  events.clear();
  ASSERT_TRUE(Watch(id, 0, &events).ok());
  EXPECT_EQ(events.back().state_change().to(), v1::Job::CANCELLED);
}

TEST_F(TrainingServiceTest, ADaemonThatRestartsRepeatsNothing) {
  std::promise<void> restarted;
  std::promise<void> half;
  Train([&](FakeTrainer& trainer) -> absl::StatusOr<train::Outcome> {
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(trainer.Emit(absl::StrCat(i)).ok());
    half.set_value();
    for (int i = 100; i < 200; ++i) EXPECT_TRUE(trainer.Emit(absl::StrCat(i)).ok());
    restarted.get_future().wait();
    return train::Outcome::kCompleted;
  });
  const std::string id = CreateGood();
  half.get_future().wait();
  StopDaemon();
  StartDaemon();
  restarted.set_value();
  std::vector<v1::JobEvent> events;
  ASSERT_TRUE(Watch(id, 0, &events).ok());
  ExpectGapless(events, 0);
  std::vector<std::string> expected;
  for (int i = 0; i < 200; ++i) expected.push_back(absl::StrCat(i));
  EXPECT_EQ(Logs(events), expected);
  EXPECT_EQ(LastState(events), v1::Job::SUCCEEDED);
  EXPECT_EQ(Get(id).attempt(), 1u);
}

TEST_F(TrainingServiceTest, DrainingRefusesSubmitsAndRequeuesJobs) {
  Train([](FakeTrainer& trainer) -> absl::StatusOr<train::Outcome> {
    EXPECT_TRUE(trainer.Emit("running").ok());
    trainer.AwaitCommands(1);
    return train::Outcome::kStopped;
  });
  const std::string id = CreateGood();
  std::vector<v1::JobEvent> events;
  Watch(id, 0, &events, [](const v1::JobEvent& event) { return event.has_log(); });
  std::promise<absl::Status> drained;
  controller_->Drain(absl::Seconds(30), [&](const absl::Status& status) { drained.set_value(status); });
  v1::Job job;
  EXPECT_EQ(Create(GoodRequest(), &job).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(drained.get_future().get().ok());
  EXPECT_EQ(Get(id).state(), v1::Job::QUEUED);
  grpc::ClientContext context;
  v1::ServerInfo info;
  ASSERT_TRUE(stub_->GetServerInfo(&context, {}, &info).ok());
  EXPECT_TRUE(info.draining());
  EXPECT_EQ(info.version(), "1.2.3");
  EXPECT_THAT(info.apis(), ElementsAre("ampd.v1"));
}

TEST_F(TrainingServiceTest, ListsDevices) {
  Train(ThreeEvents);
  grpc::ClientContext context;
  v1::ListDevicesResponse devices;
  ASSERT_TRUE(stub_->ListDevices(&context, {}, &devices).ok());
  ASSERT_EQ(devices.devices_size(), 1);
  EXPECT_EQ(devices.devices(0).id(), "cpu-0");
}

TEST_F(TrainingServiceTest, DownloadsACheckpointInChunks) {
  Train(ThreeEvents);
  const std::string id = CreateGood();
  const std::string folder = absl::StrCat(state_dir_, "/checkpoints/", id, "/step-000000005");
  std::filesystem::create_directories(folder);
  std::string content;
  for (uint32_t i = 0; i < (5u << 20) / 2; ++i) content += static_cast<char>(i * 7919 >> 5);
  std::ofstream(folder + "/model.safetensors", std::ios::binary) << content;
  std::ofstream(folder + "/empty");
  const std::string make_manifest =
      absl::StrCat("cd ", folder, "; for f in model.safetensors empty; do echo $(sha256sum < $f | cut -d' ' -f1) ",
                   "$(stat -c %s $f) $f; done > body; (cat body; echo $(sha256sum < body | cut -d' ' -f1) ",
                   "$(stat -c %s body) MANIFEST) > MANIFEST; rm body");
  ASSERT_EQ(system(make_manifest.c_str()), 0);

  std::map<std::string, std::string> files;
  grpc::ClientContext context;
  v1::DownloadCheckpointRequest request;
  request.set_job_id(id);
  const auto reader = stub_->DownloadCheckpoint(&context, request);
  v1::FileChunk chunk;
  while (reader->Read(&chunk)) {
    EXPECT_EQ(chunk.checkpoint(), "step-000000005");
    EXPECT_LE(chunk.data().size(), size_t{1} << 20);
    EXPECT_EQ(chunk.offset(), static_cast<int64_t>(files[chunk.file()].size()));
    files[chunk.file()] += chunk.data();
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_EQ(files.size(), 3u);
  EXPECT_TRUE(files["model.safetensors"] == content);
  EXPECT_EQ(files["empty"], "");

  grpc::ClientContext other_context;
  request.set_checkpoint("step-000000006");
  const auto other = stub_->DownloadCheckpoint(&other_context, request);
  EXPECT_FALSE(other->Read(&chunk));
  EXPECT_EQ(other->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

// What DownloadCheckpoint sends, or the call's error.
class RangeTest : public TrainingServiceTest {
 protected:
  void MakeCheckpoint(const std::string& id) {
    const std::string folder = absl::StrCat(state_dir_, "/checkpoints/", id, "/step-000000005");
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/model.safetensors", std::ios::binary) << kContent;
    const std::string make_manifest =
        absl::StrCat("cd ", folder, "; echo $(sha256sum < model.safetensors | cut -d' ' -f1) ", kContent.size(),
                     " model.safetensors > body; (cat body; echo $(sha256sum < body | cut -d' ' -f1) $(stat -c %s "
                     "body) MANIFEST) > ",
                     "MANIFEST; rm body");
    ASSERT_EQ(system(make_manifest.c_str()), 0);
  }
  grpc::Status Fetch(v1::DownloadCheckpointRequest request, std::string* bytes) {
    grpc::ClientContext context;
    // A bound on a test that hangs, not a measure.
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    const auto reader = stub_->DownloadCheckpoint(&context, request);
    int64_t next = request.offset();
    for (v1::FileChunk chunk; reader->Read(&chunk);) {
      EXPECT_EQ(chunk.file(), request.file());
      EXPECT_EQ(chunk.offset(), next);
      next += static_cast<int64_t>(chunk.data().size());
      *bytes += chunk.data();
    }
    return reader->Finish();
  }

  const std::string kContent = std::string(3 << 20, 'a') + "the end";
};

TEST_F(RangeTest, AFileOrAPartOfItIsSentAlone) {
  Train(ThreeEvents);
  v1::DownloadCheckpointRequest request;
  request.set_job_id(CreateGood());
  MakeCheckpoint(request.job_id());
  request.set_file("model.safetensors");
  std::string bytes;
  ASSERT_TRUE(Fetch(request, &bytes).ok());
  EXPECT_TRUE(bytes == kContent);
  request.set_checkpoint("step-000000005");
  const int64_t size = static_cast<int64_t>(kContent.size());
  const std::vector<std::pair<int64_t, int64_t>> ranges = {{1, 0},        {0, 3},    {size - 7, 0},
                                                           {size - 7, 7}, {size, 0}, {1 << 20, (1 << 20) + 1}};
  for (const auto& [offset, length] : ranges) {
    request.set_offset(offset);
    request.set_length(length);
    bytes.clear();
    ASSERT_TRUE(Fetch(request, &bytes).ok()) << offset;
    const std::string expected = kContent.substr(static_cast<size_t>(offset));
    EXPECT_TRUE(bytes == (length == 0 ? expected : expected.substr(0, static_cast<size_t>(length)))) << offset;
  }
  request.set_offset(0);
  request.set_length(0);
  request.set_file("MANIFEST");
  bytes.clear();
  ASSERT_TRUE(Fetch(request, &bytes).ok());
  EXPECT_THAT(bytes, HasSubstr(" model.safetensors\n"));
}

TEST_F(RangeTest, WhatIsNotThereIsRefused) {
  Train(ThreeEvents);
  v1::DownloadCheckpointRequest request;
  request.set_job_id(CreateGood());
  MakeCheckpoint(request.job_id());
  std::string bytes;
  request.set_offset(1);
  EXPECT_THAT(ViolatedFields(Fetch(request, &bytes)), ElementsAre("file", "checkpoint"));
  request.set_checkpoint("step-000000005");
  request.set_file("model.safetensors");
  request.set_offset(static_cast<int64_t>(kContent.size()) + 1);
  EXPECT_EQ(Fetch(request, &bytes).error_code(), grpc::StatusCode::OUT_OF_RANGE);
  request.set_offset(2);
  request.set_length(static_cast<int64_t>(kContent.size()));
  EXPECT_EQ(Fetch(request, &bytes).error_code(), grpc::StatusCode::OUT_OF_RANGE);
  request.set_length(INT64_MAX);
  EXPECT_EQ(Fetch(request, &bytes).error_code(), grpc::StatusCode::OUT_OF_RANGE);
  request.set_length(-1);
  EXPECT_THAT(ViolatedFields(Fetch(request, &bytes)), ElementsAre("length"));
  request.set_length(0);
  request.set_offset(0);
  for (const char* file : {"optimizer.safetensors", "../MANIFEST", "/etc/passwd"}) {
    request.set_file(file);
    EXPECT_EQ(Fetch(request, &bytes).error_code(), grpc::StatusCode::NOT_FOUND) << file;
  }
  EXPECT_EQ(bytes, "");
}

// Downloads of a file that no hash of it comes to an end of.
class EndlessDownloadTest : public RangeTest {
 protected:
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::FileChunk>> reader;
  };

  void MakeEndlessCheckpoint(const std::string& id) {
    const std::string folder = absl::StrCat(state_dir_, "/checkpoints/", id, "/step-000000005");
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/model.safetensors").flush();
    std::filesystem::resize_file(folder + "/model.safetensors", uint64_t{1} << 40);
    const std::string body = absl::StrCat(std::string(64, '0'), " ", uint64_t{1} << 40, " model.safetensors\n");
    std::ofstream(folder + "/MANIFEST") << body << Sha256Hex(body) << " " << body.size() << " MANIFEST\n";
  }
  // More calls than there are threads for anything, hashing.
  void BeginDownloads(const std::string& id) {
    v1::DownloadCheckpointRequest request;
    request.set_job_id(id);
    const int64_t before = BytesRead();
    for (int i = 0; i < 16; ++i) {
      Call& call = *calls_.emplace_back(std::make_unique<Call>());
      call.reader = stub_->DownloadCheckpoint(&call.context, request);
    }
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (BytesRead() - before < (64 << 20)) ASSERT_LT(absl::Now(), deadline) << "nothing is hashed";
  }
  void EndDownloads() {
    for (const auto& call : calls_) call->context.TryCancel();
    for (const auto& call : calls_) {
      v1::FileChunk chunk;
      EXPECT_FALSE(call->reader->Read(&chunk));
      EXPECT_EQ(call->reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
    }
  }
  static void SetDeadline(grpc::ClientContext* context) {
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  }
  static int64_t BytesRead() {
    std::ifstream file("/proc/self/io");
    std::string name;
    int64_t bytes = -1;
    file >> name >> bytes;
    return bytes;
  }

  std::vector<std::unique_ptr<Call>> calls_;
};

TEST_F(EndlessDownloadTest, KeepNobodyElseWaiting) {
  Train(ThreeEvents);
  const std::string id = CreateGood();
  MakeEndlessCheckpoint(id);
  ASSERT_NO_FATAL_FAILURE(BeginDownloads(id));

  grpc::ClientContext watch_context;
  SetDeadline(&watch_context);
  v1::WatchJobRequest watch;
  watch.set_job_id(id);
  const auto watcher = stub_->WatchJob(&watch_context, watch);
  std::vector<v1::JobEvent> events;
  for (v1::JobEvent event; watcher->Read(&event);) events.push_back(event);
  EXPECT_TRUE(watcher->Finish().ok());
  EXPECT_THAT(Logs(events), ElementsAre("a", "b", "c"));

  grpc::ClientContext list_context;
  SetDeadline(&list_context);
  v1::ListCheckpointsRequest list;
  list.set_job_id(id);
  v1::ListCheckpointsResponse checkpoints;
  EXPECT_TRUE(stub_->ListCheckpoints(&list_context, list, &checkpoints).ok());
  EXPECT_EQ(checkpoints.checkpoints_size(), 1);

  grpc::ClientContext datasets_context;
  SetDeadline(&datasets_context);
  v1::ListDatasetsResponse datasets;
  EXPECT_TRUE(stub_->ListDatasets(&datasets_context, {}, &datasets).ok());

  grpc::ClientContext manifest_context;
  SetDeadline(&manifest_context);
  v1::DownloadCheckpointRequest manifest;
  manifest.set_job_id(id);
  manifest.set_file("MANIFEST");
  const auto reader = stub_->DownloadCheckpoint(&manifest_context, manifest);
  v1::FileChunk chunk;
  EXPECT_TRUE(reader->Read(&chunk));
  EXPECT_THAT(chunk.data(), HasSubstr(" model.safetensors\n"));
  EXPECT_FALSE(reader->Read(&chunk));
  EXPECT_TRUE(reader->Finish().ok());
  EndDownloads();
}

TEST_F(EndlessDownloadTest, StopWhenTheirCallersGo) {
  Train(ThreeEvents);
  const std::string id = CreateGood();
  MakeEndlessCheckpoint(id);
  ASSERT_NO_FATAL_FAILURE(BeginDownloads(id));
  EndDownloads();
  // The threads are free for others.
  v1::DownloadCheckpointRequest request;
  request.set_job_id(CreateGood());
  MakeCheckpoint(request.job_id());
  request.set_file("model.safetensors");
  std::string bytes;
  EXPECT_TRUE(Fetch(request, &bytes).ok());
  EXPECT_TRUE(bytes == kContent);
}

class ArtifactTest : public TrainingServiceTest {
 protected:
  // The artifact's bytes, or the call's error.
  absl::StatusOr<std::string> Download(const std::string& id, const std::string& name) {
    grpc::ClientContext context;
    v1::DownloadArtifactRequest request;
    request.set_job_id(id);
    request.set_name(name);
    const auto reader = stub_->DownloadArtifact(&context, request);
    std::string bytes;
    v1::FileChunk chunk;
    while (reader->Read(&chunk)) {
      EXPECT_EQ(chunk.file(), name);
      EXPECT_EQ(chunk.checkpoint(), "");
      EXPECT_EQ(chunk.offset(), static_cast<int64_t>(bytes.size()));
      bytes += chunk.data();
    }
    const grpc::Status status = reader->Finish();
    if (!status.ok()) {
      return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
    }
    EXPECT_EQ(chunk.file_size(), static_cast<int64_t>(bytes.size()));
    return bytes;
  }
};

TEST_F(ArtifactTest, ComesInChunks) {
  Train(ThreeEvents);
  const std::string id = CreateGood();
  EXPECT_EQ(Download(id, "samples.png").status().code(), absl::StatusCode::kNotFound);
  const std::string folder = absl::StrCat(state_dir_, "/artifacts/", id);
  std::filesystem::create_directories(folder);
  std::string content;
  for (uint32_t i = 0; i < (5u << 20) / 2; ++i) content += static_cast<char>(i * 7919 >> 5);
  std::ofstream(folder + "/samples.png", std::ios::binary) << content;
  std::ofstream(folder + "/empty");
  EXPECT_TRUE(Download(id, "samples.png").value() == content);
  EXPECT_EQ(Download(id, "empty").value(), "");
  EXPECT_EQ(Download(id, "other").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Download("01hzzzzzzzzzzzzzzzzzzzzzzz", "empty").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ArtifactTest, NoNameLeadsOutOfTheFolder) {
  Train(ThreeEvents);
  const std::string id = CreateGood();
  const std::string folder = absl::StrCat(state_dir_, "/artifacts/", id);
  std::filesystem::create_directories(folder + "/folder");
  std::ofstream(state_dir_ + "/artifacts/secret") << "secret";
  std::ofstream(folder + "/.writing-x") << "half";
  std::filesystem::create_symlink("../secret", folder + "/link");
  for (const std::string name : {"", ".", "..", "../secret", "folder/../../secret", "/etc/passwd", ".writing-x"}) {
    EXPECT_EQ(Download(id, name).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
  EXPECT_EQ(Download(id, "link").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Download(id, "folder").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Download(id, std::string("a\0b", 3)).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ampd
