// UploadModel, and jobs that start from uploads and from other jobs.
#include <openssl/evp.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "engine/core/mutex.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/unit/server/service/service_fixture.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Sha256(const std::string& bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

std::vector<std::string> Violated(const grpc::Status& status) {
  google::rpc::Status details;
  std::vector<std::string> fields;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  for (const google::protobuf::Any& any : details.details()) {
    google::rpc::BadRequest bad;
    if (!any.UnpackTo(&bad)) continue;
    for (const auto& violation : bad.field_violations()) fields.push_back(violation.field());
  }
  return fields;
}

// Held until it is asked to stop.
absl::StatusOr<train::Outcome> UntilStopped(FakeTrainer& trainer) {
  trainer.AwaitCommands(1);
  return train::Outcome::kStopped;
}

class StartFromTest : public ServiceFixture {
 protected:
  grpc::Status Upload(const std::vector<v1::UploadModelRequest>& requests, v1::UploadModelResponse* response,
                      size_t* written = nullptr) {
    grpc::ClientContext context;
    const auto writer = stub_->UploadModel(&context, response);
    size_t sent = 0;
    while (sent < requests.size() && writer->Write(requests[sent])) ++sent;
    writer->WritesDone();
    if (written != nullptr) *written = sent;
    return writer->Finish();
  }
  grpc::Status Upload(const std::string& checksum, const std::string& bytes, v1::UploadModelResponse* response) {
    v1::UploadModelRequest first, rest;
    first.set_sha256(checksum);
    first.set_data(bytes.substr(0, bytes.size() / 2));
    rest.set_data(bytes.substr(bytes.size() / 2));
    return Upload({first, rest}, response);
  }
  std::vector<std::string> Uploads() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(state_dir_ + "/uploads")) names.push_back(entry.path().filename());
    return names;
  }

  // A whole checkpoint of the job, whose weights are `content`; in the mirror where `root` says so.
  void MakeCheckpoint(const std::string& id, const std::string& name, const std::string& content,
                      const std::string& root = "checkpoints") {
    const std::string folder = absl::StrCat(state_dir_, "/", root, "/", id, "/", name);
    fs::create_directories(folder);
    std::ofstream(folder + "/model.safetensors") << content;
    const std::string line = absl::StrCat(Sha256(content), " ", content.size(), " model.safetensors\n");
    std::ofstream(folder + "/MANIFEST") << line << Sha256(line) << " " << line.size() << " MANIFEST\n";
  }
  static std::string Read(const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  // Before long: what is let go of is removed on a thread of its own.
  bool NothingIsHeld() const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!fs::is_empty(state_dir_ + "/starts") && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    return fs::is_empty(state_dir_ + "/starts");
  }
  v1::CreateJobRequest From(const std::string& job, const std::string& checkpoint = "") {
    v1::CreateJobRequest request = GoodRequest();
    request.mutable_spec()->mutable_start_from()->set_job_id(job);
    request.mutable_spec()->mutable_start_from()->set_checkpoint(checkpoint);
    return request;
  }
};

TEST_F(StartFromTest, AnUploadIsKeptAndToldOfTheNextTime) {
  Train(UntilStopped);
  const std::string bytes(100000, 'w');
  v1::UploadModelResponse response;
  grpc::Status status = Upload(Sha256(bytes), bytes, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.path(), "upload:" + Sha256(bytes));
  EXPECT_EQ(response.size_bytes(), 100000);
  EXPECT_TRUE(Read(state_dir_ + "/uploads/" + Sha256(bytes)) == bytes);
  // Answered by the checksum alone, while the client would still send.
  response.Clear();
  grpc::ClientContext context;
  const auto writer = stub_->UploadModel(&context, &response);
  v1::UploadModelRequest request;
  request.set_sha256(Sha256(bytes));
  ASSERT_TRUE(writer->Write(request));
  EXPECT_TRUE(writer->Finish().ok());
  EXPECT_EQ(response.path(), "upload:" + Sha256(bytes));
  EXPECT_EQ(response.size_bytes(), 100000);
}

TEST_F(StartFromTest, BadUploadsLeaveNothing) {
  Train(UntilStopped);
  v1::UploadModelResponse response;
  const std::string sum = Sha256("abc");
  const auto code = [&](const std::vector<v1::UploadModelRequest>& requests) {
    return Upload(requests, &response).error_code();
  };
  v1::UploadModelRequest first, large, other;
  first.set_sha256(sum);
  first.set_data("ab");
  large.set_data(std::string((1 << 20) + 1, 'x'));
  other.set_sha256(Sha256("abd"));
  other.set_data("c");
  EXPECT_EQ(code({}), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code({large}), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code({first}), grpc::StatusCode::INVALID_ARGUMENT) << "cut short";
  EXPECT_EQ(code({first, large}), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code({first, other}), grpc::StatusCode::INVALID_ARGUMENT);
  first.set_sha256("../../etc/passwd");
  EXPECT_EQ(code({first}), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(Uploads(), IsEmpty());
  // The fixture's limit.
  const std::string much(300000, 'x');
  const grpc::Status exhausted = Upload(Sha256(much), much, &response);
  EXPECT_EQ(exhausted.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << exhausted.error_message();
  EXPECT_THAT(Uploads(), IsEmpty());
}

TEST_F(StartFromTest, AnUploadThatIsGivenUpLeavesNothing) {
  Train(UntilStopped);
  {
    grpc::ClientContext context;
    v1::UploadModelResponse response;
    const auto writer = stub_->UploadModel(&context, &response);
    v1::UploadModelRequest request;
    request.set_sha256(Sha256("abc"));
    request.set_data("ab");
    ASSERT_TRUE(writer->Write(request));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (Uploads().empty() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT_EQ(Uploads().size(), 1u);
    context.TryCancel();
    EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!Uploads().empty() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_THAT(Uploads(), IsEmpty());
}

TEST_F(StartFromTest, AnUploadInWhichNothingComesEnds) {
  stall_limit_ = absl::Milliseconds(40);
  Train(UntilStopped);
  grpc::ClientContext context;
  v1::UploadModelResponse response;
  const auto writer = stub_->UploadModel(&context, &response);
  const grpc::Status status = writer->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("nothing was sent for 40ms"));
}

TEST_F(StartFromTest, UnknownUploadsAreRefusedByField) {
  Train(UntilStopped);
  v1::CreateJobRequest request = GoodRequest();
  request.mutable_spec()->mutable_start_from()->set_path("upload:" + Sha256("abc"));
  v1::Job job;
  const grpc::Status refused = Create(request, &job);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(Violated(refused), ElementsAre("start_from.path"));
  EXPECT_THAT(refused.error_message(), HasSubstr("no file was uploaded"));
  v1::UploadModelResponse response;
  ASSERT_TRUE(Upload(Sha256("abc"), "abc", &response).ok());
  std::string upload_dir;
  SetPlanner([&](const v1::PlanRequest& asked) {
    upload_dir = asked.upload_dir();
    return v1::PlanResponse();
  });
  ASSERT_TRUE(Create(request, &job).ok());
  EXPECT_EQ(upload_dir, state_dir_ + "/uploads");
  request.mutable_spec()->mutable_start_from()->set_path("../w.safetensors");
  EXPECT_THAT(Violated(Create(request, &job)), ElementsAre("start_from.path"));
}

TEST_F(StartFromTest, TheNewestWholeCheckpointIsChosenAndHeldUntilTheJobEnds) {
  Train(UntilStopped);
  const std::string first = CreateGood();
  MakeCheckpoint(first, "step-000000001", "one");
  MakeCheckpoint(first, "step-000000002", "two");
  MakeCheckpoint(first, "step-000000003", "three");
  std::ofstream(absl::StrCat(state_dir_, "/checkpoints/", first, "/step-000000003/model.safetensors")) << "throe";
  std::string planned;
  SetPlanner([&](const v1::PlanRequest& asked) {
    planned = Read(asked.start_checkpoint_dir() + "/model.safetensors");
    return v1::PlanResponse();
  });
  v1::CreateJobRequest request = From(first.substr(0, 20));
  request.set_validate_only(true);
  v1::Job job;
  ASSERT_TRUE(Create(request, &job).ok());
  EXPECT_TRUE(NothingIsHeld()) << "for what was only looked at";
  request.set_validate_only(false);
  const grpc::Status status = Create(request, &job);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(planned, "two");
  EXPECT_EQ(job.spec().start_from().job_id(), first) << "whole";
  EXPECT_EQ(job.spec().start_from().checkpoint(), "step-000000002");
  // Retention goes on.
  fs::remove_all(absl::StrCat(state_dir_, "/checkpoints/", first, "/step-000000002"));
  const std::string held = absl::StrCat(state_dir_, "/starts/", job.id());
  EXPECT_EQ(Read(held + "/step-000000002/model.safetensors"), "two");
  StopDaemon();
  StartDaemon();
  EXPECT_EQ(Read(held + "/step-000000002/model.safetensors"), "two") << "over a restart";
  grpc::ClientContext context;
  v1::CancelJobRequest cancel;
  cancel.set_job_id(job.id());
  ASSERT_TRUE(stub_->CancelJob(&context, cancel, &job).ok());
  std::vector<v1::JobEvent> events;
  ASSERT_TRUE(Watch(job.id(), 0, &events).ok());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (fs::exists(held) && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_FALSE(fs::exists(held)) << "the job has ended";
}

TEST_F(StartFromTest, PointsOfASweepStartFromWhatWasHeldForTheFirst) {
  Train(UntilStopped);
  const std::string first = CreateGood();
  MakeCheckpoint(first, "step-000000001", "one");
  MakeCheckpoint(first, "step-000000002", "two");
  const std::string folder = absl::StrCat(state_dir_, "/checkpoints/", first, "/step-000000002");
  std::vector<std::string> planned;
  SetPlanner([&](const v1::PlanRequest& asked) {
    planned.push_back(Read(asked.start_checkpoint_dir() + "/model.safetensors"));
    // Retention goes on.
    fs::remove_all(folder);
    return v1::PlanResponse();
  });
  v1::CreateSweepRequest request;
  *request.mutable_spec() = From(first.substr(0, 20)).spec();
  auto& units = (*request.mutable_spec()->mutable_sweep()->mutable_grid())["model.layers[0].dense.units"];
  for (int i = 0; i < 3; ++i) units.add_values()->set_number_value(11 + i);
  const auto create = [&](bool validate_only) {
    request.set_validate_only(validate_only);
    planned.clear();
    grpc::ClientContext context;
    v1::JobSweep sweep;
    const grpc::Status status = stub_->CreateSweep(&context, request, &sweep);
    EXPECT_TRUE(status.ok()) << status.error_message();
    const std::lock_guard lock(planner_mutex_);
    EXPECT_THAT(planned, ElementsAre("two", "two", "two"));
    return sweep;
  };
  create(true);
  EXPECT_TRUE(NothingIsHeld()) << "for what was only looked at";
  // As if others were planned.
  for (google::protobuf::Value& value : *units.mutable_values()) value.set_number_value(value.number_value() + 10);
  MakeCheckpoint(first, "step-000000002", "two");
  const v1::JobSweep sweep = create(false);
  ASSERT_EQ(sweep.jobs_size(), 3);
  for (const v1::Job& job : sweep.jobs()) {
    EXPECT_EQ(Get(job.id()).spec().start_from().job_id(), first) << "whole";
    EXPECT_EQ(Get(job.id()).spec().start_from().checkpoint(), "step-000000002");
    EXPECT_EQ(Read(absl::StrCat(state_dir_, "/starts/", job.id(), "/step-000000002/model.safetensors")), "two");
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(state_dir_ + "/starts"), {}), 3);
}

TEST_F(StartFromTest, TheMirrorsCopyTakesThePlaceOfWhatIsDamagedOrGone) {
  Train(UntilStopped);
  const std::string first = CreateGood();
  Mutex mutex;
  std::string planned;
  SetPlanner([&](const v1::PlanRequest& asked) {
    const MutexLock lock(&mutex);
    planned = Read(asked.start_checkpoint_dir() + "/model.safetensors");
    return v1::PlanResponse();
  });
  // "checkpoint weights", or the error.
  const auto start = [&](const std::string& checkpoint) {
    {
      const MutexLock lock(&mutex);
      planned.clear();
    }
    v1::CreateJobRequest request = From(first, checkpoint);
    request.set_validate_only(true);
    v1::Job job;
    const grpc::Status status = Create(request, &job);
    const MutexLock lock(&mutex);
    return status.ok() ? absl::StrCat(job.spec().start_from().checkpoint(), " ", planned) : status.error_message();
  };
  const std::string folder = absl::StrCat(state_dir_, "/checkpoints/", first);
  for (const char* root : {"checkpoints", "mirror"}) {
    MakeCheckpoint(first, "step-000000001", "one", root);
    MakeCheckpoint(first, "step-000000002", "two", root);
  }
  EXPECT_EQ(start(""), "step-000000002 two");
  std::ofstream(folder + "/step-000000002/model.safetensors") << "twO";
  EXPECT_EQ(start(""), "step-000000002 two") << "sooner than an older one";
  fs::remove_all(folder + "/step-000000002");
  EXPECT_EQ(start("step-000000002"), "step-000000002 two");
  // What the mirror alone has, and the job has not told of, is an older one's turn last.
  EXPECT_EQ(start(""), "step-000000001 one");
  fs::remove_all(folder + "/step-000000001");
  MakeCheckpoint(first, "step-000000003", "three");
  std::ofstream(folder + "/step-000000003/model.safetensors") << "throe";
  EXPECT_EQ(start(""), "step-000000002 two");
  std::ofstream(absl::StrCat(state_dir_, "/mirror/", first, "/step-000000002/model.safetensors")) << "twO";
  EXPECT_THAT(start("step-000000002"), HasSubstr("has no checkpoint to start from"));
  EXPECT_THAT(start("step-000000002"), HasSubstr("the mirror's copy"));
  EXPECT_TRUE(NothingIsHeld());
}

TEST_F(StartFromTest, JobsAndCheckpointsThatAreNotThereAreRefusedByField) {
  Train(UntilStopped);
  const std::string first = CreateGood();
  v1::Job job;
  EXPECT_THAT(Violated(Create(From("01hzzzzzzzzzzzzzzzzzzzzzzz"), &job)), ElementsAre("start_from.job_id"));
  grpc::Status none = Create(From(first), &job);
  EXPECT_THAT(Violated(none), ElementsAre("start_from.job_id"));
  EXPECT_THAT(none.error_message(), HasSubstr("has no checkpoint to start from"));
  MakeCheckpoint(first, "step-000000001", "one");
  EXPECT_THAT(Violated(Create(From(first, "step-000000009"), &job)), ElementsAre("start_from.checkpoint"));
  std::ofstream(absl::StrCat(state_dir_, "/checkpoints/", first, "/step-000000001/model.safetensors")) << "onE";
  const grpc::Status damaged = Create(From(first, "step-000000001"), &job);
  EXPECT_THAT(Violated(damaged), ElementsAre("start_from.checkpoint"));
  EXPECT_THAT(damaged.error_message(), HasSubstr("does not match its checksum"));
  EXPECT_TRUE(NothingIsHeld());
}

TEST_F(StartFromTest, TheBestCheckpointIsNamedAtSubmit) {
  Train(UntilStopped);
  const std::string first = CreateGood();
  MakeCheckpoint(first, "step-000000001", "one");
  MakeCheckpoint(first, "step-000000002", "two");
  v1::Job job;
  const grpc::Status none = Create(From(first, "best"), &job);
  EXPECT_THAT(Violated(none), ElementsAre("start_from.checkpoint"));
  EXPECT_THAT(none.error_message(), HasSubstr("keep_best"));
  std::ofstream(absl::StrCat(state_dir_, "/checkpoints/", first, "/step-000000002/state.json"))
      << R"({"best": {"step": 1}})";
  ASSERT_TRUE(Create(From(first, "best"), &job).ok());
  EXPECT_EQ(job.spec().start_from().checkpoint(), "step-000000001");
  // To download it too, but not in parts: it may be another by the next call.
  grpc::ClientContext context, parts;
  v1::DownloadCheckpointRequest request;
  request.set_job_id(first);
  request.set_checkpoint("best");
  v1::FileChunk chunk;
  const auto reader = stub_->DownloadCheckpoint(&context, request);
  ASSERT_TRUE(reader->Read(&chunk));
  EXPECT_EQ(chunk.checkpoint(), "step-000000001");
  EXPECT_EQ(chunk.data(), "one");
  while (reader->Read(&chunk)) continue;
  EXPECT_TRUE(reader->Finish().ok());
  request.set_file("model.safetensors");
  request.set_offset(1);
  const auto refused = stub_->DownloadCheckpoint(&parts, request);
  EXPECT_FALSE(refused->Read(&chunk));
  EXPECT_THAT(Violated(refused->Finish()), ElementsAre("checkpoint"));
}

// Calls that read weights whose hash comes to no end before they are cut.
class LargeWeightsTest : public StartFromTest {
 protected:
  void SetUp() override {
    Train(UntilStopped);
    first_ = CreateGood();
    MakeCheckpoint(first_, "step-000000001", "");
  }
  std::string Folder() const { return absl::StrCat(state_dir_, "/checkpoints/", first_, "/step-000000001"); }
  void MakeEndless() const {
    fs::resize_file(Folder() + "/model.safetensors", uint64_t{1} << 40);
    const std::string line = absl::StrCat(std::string(64, '0'), " ", uint64_t{1} << 40, " model.safetensors\n");
    std::ofstream(Folder() + "/MANIFEST") << line << Sha256(line) << " " << line.size() << " MANIFEST\n";
  }
  std::ptrdiff_t Held() const {
    std::error_code not_there_yet;
    return std::distance(fs::directory_iterator(state_dir_ + "/starts", not_there_yet), fs::directory_iterator());
  }
  // Submits another job meanwhile; the calls end with `code` once the weights are cut.
  void ExpectOthersDoNotWaitFor(const std::function<grpc::Status(grpc::ClientContext*)>& call, grpc::StatusCode code) {
    const std::ptrdiff_t before = Held();
    std::vector<std::future<grpc::Status>> calls;
    for (int i = 0; i < 4; ++i) {
      calls.push_back(std::async(std::launch::async, [&call] {
        grpc::ClientContext context;
        return call(&context);
      }));
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    // As many as are read at a time.
    while (Held() < before + 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT_GE(Held(), before + 2);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    // One that was not planned yet.
    v1::CreateJobRequest other = GoodRequest();
    other.mutable_spec()->mutable_model()->mutable_layers(0)->mutable_dense()->set_units(11);
    v1::Job job;
    const grpc::Status status = stub_->CreateJob(&context, other, &job);
    EXPECT_TRUE(status.ok()) << status.error_message();
    fs::resize_file(Folder() + "/model.safetensors", 0);
    for (auto& each : calls) EXPECT_EQ(each.get().error_code(), code);
  }

  std::string first_;
};

TEST_F(LargeWeightsTest, KeepNoSubmitWaitingForOthers) {
  MakeEndless();
  ExpectOthersDoNotWaitFor(
      [this](grpc::ClientContext* context) {
        v1::Job job;
        return stub_->CreateJob(context, From(first_), &job);
      },
      grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(LargeWeightsTest, KeepNoSubmitWaitingForPlans) {
  MakeEndless();
  ExpectOthersDoNotWaitFor(
      [this](grpc::ClientContext* context) {
        v1::PlanJobRequest request;
        *request.mutable_spec() = From(first_).spec();
        v1::PlanReport report;
        return stub_->PlanJob(context, request, &report);
      },
      grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(LargeWeightsTest, KeepNoSubmitWaitingForRetries) {
  v1::Job second;
  ASSERT_TRUE(Create(From(first_), &second).ok());
  v1::CancelJobRequest cancel;
  cancel.set_job_id(second.id());
  v1::Job cancelled;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->CancelJob(&context, cancel, &cancelled).ok());
  ASSERT_EQ(cancelled.state(), v1::Job::CANCELLED);
  ASSERT_TRUE(NothingIsHeld());
  MakeEndless();
  ExpectOthersDoNotWaitFor(
      [this, &second](grpc::ClientContext* retry_context) {
        v1::RetryJobRequest request;
        request.set_job_id(second.id());
        v1::Job job;
        return stub_->RetryJob(retry_context, request, &job);
      },
      grpc::StatusCode::FAILED_PRECONDITION);
}

}  // namespace
}  // namespace ampd
