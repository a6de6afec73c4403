// The API before a service that does as the test says: what becomes of a download whose checkpoint changes or for which
// there is no room, and of a call whose client goes away.
#include "server/web/api.h"

#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/core/mutex.h"
#include "gtest/gtest.h"
#include "server/service/sha256.h"
#include "server/service/try_again.h"
#include "tests/unit/server/http/fake_exchange.h"

namespace ampd {
namespace {

using ::testing::HasSubstr;

constexpr char kJob[] = "01hq3v7m0000000000000000000";
constexpr char kCheckpoint[] = "step-000000005";

// A checkpoint's files, in the order of MANIFEST.
using Files = std::vector<std::pair<std::string, std::string>>;

std::string ManifestOf(const Files& files) {
  std::string lines;
  for (const auto& [name, bytes] : files) {
    absl::StrAppend(&lines, Sha256Hex(bytes), " ", bytes.size(), " ", name, "\n");
  }
  return absl::StrCat(lines, Sha256Hex(lines), " ", lines.size(), " MANIFEST\n");
}

// A call of it that waits until its caller goes away.
class Waiting final : public grpc::ServerUnaryReactor {
 public:
  explicit Waiting(std::promise<void>* gone) : gone_(gone) {}

 private:
  void OnCancel() override {
    gone_->set_value();
    Finish(grpc::Status(grpc::StatusCode::CANCELLED, "gone"));
  }
  void OnDone() override { delete this; }

  std::promise<void>* const gone_;
};

class FakeService final : public v1::TrainingService::WithCallbackMethod_ProfileJob<v1::TrainingService::Service> {
 public:
  // Of the next downloads, by how many there were before.
  std::function<absl::StatusOr<Files>(int download)> files;
  std::promise<void> profiling, gone;

  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest*, v1::Job* job) override {
    job->set_id(kJob);
    return grpc::Status::OK;
  }
  grpc::Status ListCheckpoints(grpc::ServerContext*, const v1::ListCheckpointsRequest*,
                               v1::ListCheckpointsResponse* list) override {
    list->add_checkpoints()->set_name(kCheckpoint);
    return grpc::Status::OK;
  }
  grpc::Status DownloadCheckpoint(grpc::ServerContext*, const v1::DownloadCheckpointRequest* request,
                                  grpc::ServerWriter<v1::FileChunk>* writer) override {
    absl::StatusOr<Files> found = files(NextDownload());
    if (!found.ok()) return ToGrpcStatus(found.status());
    found->push_back({"MANIFEST", ManifestOf(*found)});
    for (const auto& [name, bytes] : *found) {
      if (request->file().empty() || request->file() == name) Send(name, bytes, writer);
    }
    return grpc::Status::OK;
  }
  grpc::ServerUnaryReactor* ProfileJob(grpc::CallbackServerContext* context, const v1::ProfileJobRequest* request,
                                       v1::StepProfile* profile) override {
    if (request->steps() == 1) {
      profile->set_last_step(7);
      grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
      reactor->Finish(grpc::Status::OK);
      return reactor;
    }
    profiling.set_value();
    return new Waiting(&gone);
  }

 private:
  int NextDownload() {
    const MutexLock lock(&mutex_);
    return downloads_++;
  }
  static void Send(const std::string& name, const std::string& bytes, grpc::ServerWriter<v1::FileChunk>* writer) {
    constexpr size_t kChunk = 1000;
    size_t offset = 0;
    do {
      v1::FileChunk chunk;
      chunk.set_checkpoint(kCheckpoint);
      chunk.set_file(name);
      chunk.set_file_size(static_cast<int64_t>(bytes.size()));
      chunk.set_offset(static_cast<int64_t>(offset));
      chunk.set_data(bytes.substr(offset, kChunk));
      writer->Write(chunk);
      offset += kChunk;
    } while (offset < bytes.size());
  }

  Mutex mutex_;
  int downloads_ ABSL_GUARDED_BY(mutex_) = 0;
};

class ApiTest : public ::testing::Test {
 protected:
  ApiTest() {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    JsonApi::Options options;
    options.gate = &gate_;
    options.fleet = &fleet_;
    api_ = std::make_unique<JsonApi>(options, server_->InProcessChannel({}));
    api_->AddRoutes(&router_);
  }
  ~ApiTest() override {
    api_->Stop();
    server_->Shutdown();
  }

  FakeExchange Fetched(const std::string& path) {
    FakeExchange exchange("GET", path, {{"Host", "127.0.0.1:7071"}});
    router_.Serve(exchange);
    return exchange;
  }
  FakeExchange Archive() {
    return Fetched(absl::StrCat("/api/v1/jobs/01hq3v7m/checkpoints/", kCheckpoint, "?format=tar"));
  }
  // What the archive has of each file, by MANIFEST in it.
  static void ExpectWhole(const FakeExchange& answer, const Files& files) {
    ASSERT_EQ(answer.status(), 200) << answer.response().body;
    std::string expected;
    Files all = files;
    all.push_back({"MANIFEST", ManifestOf(files)});
    for (const auto& [name, bytes] : all) {
      const auto entry = MakeTarEntry(kCheckpoint, name, static_cast<int64_t>(bytes.size()), absl::UnixEpoch());
      absl::StrAppend(&expected, entry->header, bytes, TarPadding(entry->size));
    }
    EXPECT_TRUE(answer.response().body == absl::StrCat(expected, TarEnd()));
    EXPECT_EQ(answer.length(), static_cast<int64_t>(answer.response().body.size()));
  }

  const Files first_ = {{"model.safetensors", std::string(2500, 'a')}, {"empty", ""}, {"state.json", "{\"a\": 1}"}};
  const Files second_ = {{"model.safetensors", std::string(2500, 'b')}, {"empty", ""}, {"state.json", "{\"b\": 2}"}};
  CallGate gate_{CallGate::Options()};
  FleetFeed fleet_;
  FakeService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<JsonApi> api_;
  Router router_;
};

TEST_F(ApiTest, AnArchiveIsOfOneWriting) {
  // Written anew once its first file is on the way, with as many bytes.
  service_.files = [&](int download) { return download < 2 ? first_ : second_; };
  ExpectWhole(Archive(), first_);
  ExpectWhole(Archive(), second_);
}

TEST_F(ApiTest, AnArchiveIsNamedByItsJob) {
  service_.files = [&](int) { return first_; };
  EXPECT_EQ(Archive().ResponseHeader("Content-Disposition"),
            absl::StrCat("attachment; filename=\"", kJob, "-", kCheckpoint, ".tar\""));
}

TEST_F(ApiTest, AFileOfAnotherSizeGetsNoHeader) {
  Files longer = first_;
  longer[0].second += "a";
  service_.files = [&](int download) { return download == 0 ? first_ : longer; };
  const FakeExchange refused = Archive();
  EXPECT_EQ(refused.status(), 409);
  EXPECT_THAT(refused.response().body, HasSubstr("written anew"));
  // Behind the first one the answer ends before its length: with that file, and nothing of the next.
  Files other = first_;
  other[2].second += " ";
  service_.files = [&](int download) { return download == 2 ? first_ : other; };
  const FakeExchange cut = Archive();
  EXPECT_EQ(cut.status(), 200);
  EXPECT_EQ(cut.response().body.size(), 512u + 2560u + 512u);
  EXPECT_GT(cut.length(), 512 + 2560 + 512);
  // Fewer files, and more of them.
  for (const Files& files : {Files{first_[0]}, Files{first_[0], first_[1], first_[2], {"more", "a"}}}) {
    int download = 0;
    service_.files = [&](int) { return download++ == 0 ? first_ : files; };
    const FakeExchange changed = Archive();
    EXPECT_NE(changed.length().value_or(-1), static_cast<int64_t>(changed.response().body.size()));
  }
}

TEST_F(ApiTest, AnArchiveTakesItsPlaceBeforeItsFirstByte) {
  const absl::Status full = TryAgain("too many calls of this kind are under way", absl::Seconds(2));
  // There is none any more once it has begun.
  service_.files = [&](int download) -> absl::StatusOr<Files> {
    if (download < 2) return first_;
    return full;
  };
  ExpectWhole(Archive(), first_);
  for (int before = 0; before < 2; ++before) {
    int download = 0;
    service_.files = [&](int) -> absl::StatusOr<Files> {
      if (download++ < before) return first_;
      return full;
    };
    const FakeExchange refused = Archive();
    EXPECT_EQ(refused.status(), 429);
    EXPECT_EQ(refused.ResponseHeader("Retry-After"), "2");
    EXPECT_EQ(refused.ResponseHeader("Content-Disposition"), "");
  }
}

TEST_F(ApiTest, AProfileIsNotWaitedForWithoutItsClient) {
  const std::string path = absl::StrCat("/api/v1/jobs/", kJob, "/profile");
  const HttpHeaders headers = {{"Host", "127.0.0.1:7071"}, {"Content-Type", "application/json"}};
  FakeExchange exchange("POST", path, headers, "{\"steps\": 5}");
  std::shared_future<void> profiling(service_.profiling.get_future());
  exchange.is_left = [&] { return profiling.wait_for(std::chrono::seconds(0)) == std::future_status::ready; };
  router_.Serve(exchange);
  EXPECT_EQ(exchange.status(), 499);
  service_.gone.get_future().wait();
  FakeExchange answered("POST", path, headers, "{\"steps\": 1}");
  router_.Serve(answered);
  EXPECT_EQ(answered.status(), 200);
  EXPECT_THAT(answered.response().body, HasSubstr("\"last_step\": 7"));
}

}  // namespace
}  // namespace ampd
