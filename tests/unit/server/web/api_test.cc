// The API before a service that does as the test says: what becomes of a download whose checkpoint changes or for which
// there is no room, and of a call whose client goes away.
#include "server/web/api.h"

#include <gmock/gmock.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/core/mutex.h"
#include "gtest/gtest.h"
#include "server/service/sha256.h"
#include "server/service/try_again.h"
#include "server/store/retention.h"
#include "tests/unit/server/http/fake_exchange.h"
#include "tests/unit/server/jobs/fake_clock.h"
#include "tests/unit/server/store/store_test_util.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
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
template <typename Reactor>
class Waiting final : public Reactor {
 public:
  explicit Waiting(std::promise<void>* gone) : gone_(gone) {}

 private:
  void OnCancel() override {
    gone_->set_value();
    this->Finish(grpc::Status(grpc::StatusCode::CANCELLED, "gone"));
  }
  void OnDone() override { delete this; }

  std::promise<void>* const gone_;
};

// Sends a chunk of an export.
class OneChunk final : public grpc::ServerWriteReactor<v1::FileChunk> {
 public:
  explicit OneChunk(const std::string& bytes) {
    chunk_.set_checkpoint(kCheckpoint);
    chunk_.set_file_size(static_cast<int64_t>(bytes.size()));
    chunk_.set_data(bytes);
    StartWriteAndFinish(&chunk_, grpc::WriteOptions(), grpc::Status::OK);
  }

 private:
  void OnDone() override { delete this; }

  v1::FileChunk chunk_;
};

// Sends an export of two chunks, the second only after time in which somebody may look whether the client is still
// there.
class TwoChunks final : public grpc::ServerWriteReactor<v1::FileChunk> {
 public:
  TwoChunks() {
    chunk_.set_checkpoint(kCheckpoint);
    chunk_.set_file_size(8);
    chunk_.set_data("two ");
    StartWrite(&chunk_);
  }

 private:
  void OnWriteDone(bool) override {
    std::thread([this] {
      cancelled_.get_future().wait_for(std::chrono::milliseconds(800));
      chunk_.set_offset(4);
      chunk_.set_data("of 4");
      StartWriteAndFinish(&chunk_, grpc::WriteOptions(), grpc::Status::OK);
    }).detach();
  }
  void OnCancel() override { cancelled_.set_value(); }
  void OnDone() override { delete this; }

  v1::FileChunk chunk_;
  std::promise<void> cancelled_;
};

using CallbackService = v1::TrainingService::WithCallbackMethod_ProfileJob<
    v1::TrainingService::WithCallbackMethod_ExportModel<v1::TrainingService::Service>>;

class FakeService final : public CallbackService {
 public:
  // Of the next downloads, by how many there were before.
  std::function<absl::StatusOr<Files>(int download)> files;
  // Whether the checkpoint is among those of the job.
  bool is_listed = true;
  // Set when a call begins that waits, and when its caller is gone.
  std::promise<void> waiting, gone;
  // The last one.
  v1::ExportModelRequest exported;

  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest*, v1::Job* job) override {
    job->set_id(kJob);
    return grpc::Status::OK;
  }
  grpc::Status ListCheckpoints(grpc::ServerContext*, const v1::ListCheckpointsRequest*,
                               v1::ListCheckpointsResponse* list) override {
    if (is_listed) list->add_checkpoints()->set_name(kCheckpoint);
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
    waiting.set_value();
    return new Waiting<grpc::ServerUnaryReactor>(&gone);
  }
  grpc::ServerWriteReactor<v1::FileChunk>* ExportModel(grpc::CallbackServerContext*,
                                                       const v1::ExportModelRequest* request) override {
    exported = *request;
    if (request->network() == "pausing") return new TwoChunks;
    if (request->network() != "slow") return new OneChunk("a model");
    waiting.set_value();
    return new Waiting<grpc::ServerWriteReactor<v1::FileChunk>>(&gone);
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
  // `log` outlives this; null: there is none.
  explicit ApiTest(EventLog* log = nullptr) {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    JsonApi::Options options;
    options.gate = &gate_;
    options.log = log;
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
  // Whose client goes away once the service waits.
  void ServeUntilItWaits(FakeExchange* exchange) {
    std::shared_future<void> waiting(service_.waiting.get_future());
    exchange->is_left = [&] { return waiting.wait_for(std::chrono::seconds(0)) == std::future_status::ready; };
    router_.Serve(*exchange);
    EXPECT_EQ(exchange->status(), 499);
    service_.gone.get_future().wait();
  }
  FakeExchange Exported(const std::string& query) {
    return Fetched(absl::StrCat("/api/v1/jobs/01hq3v7m/checkpoints/", kCheckpoint, "/export?", query));
  }
  FakeExchange Archive(const std::string& checkpoint = kCheckpoint) {
    return Fetched(absl::StrCat("/api/v1/jobs/01hq3v7m/checkpoints/", checkpoint, "?format=tar"));
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

TEST_F(ApiTest, AnArchiveOfTheBestHasItsName) {
  service_.files = [&](int) { return first_; };
  const FakeExchange answer = Archive("best");
  ExpectWhole(answer, first_);
  EXPECT_EQ(answer.ResponseHeader("Content-Disposition"),
            absl::StrCat("attachment; filename=\"", kJob, "-", kCheckpoint, ".tar\""));
}

// As the mirror alone may have it.
TEST_F(ApiTest, ACheckpointThatIsNotListedComesAsAnArchive) {
  service_.is_listed = false;
  service_.files = [&](int) { return first_; };
  const FakeExchange answer = Archive();
  ASSERT_EQ(answer.status(), 200) << answer.response().body;
  EXPECT_EQ(answer.length(), static_cast<int64_t>(answer.response().body.size()));
  EXPECT_THAT(answer.response().body, HasSubstr(first_[0].second));
  service_.files = [&](int) { return absl::NotFoundError("no checkpoint"); };
  EXPECT_EQ(Archive().status(), 404);
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
  ServeUntilItWaits(&exchange);
  FakeExchange answered("POST", path, headers, "{\"steps\": 1}");
  router_.Serve(answered);
  EXPECT_EQ(answered.status(), 200);
  EXPECT_THAT(answered.response().body, HasSubstr("\"last_step\": 7"));
}

TEST_F(ApiTest, AnExportIsWhatTheQueryAsksFor) {
  const FakeExchange half = Exported("form=safetensors&dtype=FP16&ema=true&network=trunk");
  EXPECT_EQ(half.status(), 200) << half.response().body;
  EXPECT_EQ(half.response().body, "a model");
  EXPECT_EQ(half.length(), 7);
  EXPECT_EQ(half.ResponseHeader("Content-Disposition"),
            absl::StrCat("attachment; filename=\"", kJob, "-", kCheckpoint, "-trunk.safetensors\""));
  EXPECT_EQ(service_.exported.job_id(), kJob);
  EXPECT_EQ(service_.exported.checkpoint(), kCheckpoint);
  EXPECT_EQ(service_.exported.form(), v1::ExportModelRequest::SAFETENSORS);
  EXPECT_EQ(service_.exported.dtype(), v1::ExportModelRequest::FLOAT16);
  EXPECT_TRUE(service_.exported.ema());
  EXPECT_EQ(service_.exported.network(), "trunk");
  // A name that would need quoting is left out.
  const FakeExchange onnx = Exported("form=onnx&network=a%22b");
  EXPECT_EQ(onnx.ResponseHeader("Content-Disposition"),
            absl::StrCat("attachment; filename=\"", kJob, "-", kCheckpoint, ".onnx\""));
  EXPECT_EQ(service_.exported.form(), v1::ExportModelRequest::ONNX);
  EXPECT_FALSE(service_.exported.ema());
  for (const char* wrong :
       {"", "form=", "form=tflite", "form=onnx&dtype=fp64", "form=onnx&ema=1", "form=onnx&name=x"}) {
    EXPECT_EQ(Exported(wrong).status(), 400) << wrong;
  }
}

TEST_F(ApiTest, AClientThatHasNoMoreToSendGetsWhatHasBegun) {
  FakeExchange exchange(
      "GET", absl::StrCat("/api/v1/jobs/", kJob, "/checkpoints/", kCheckpoint, "/export?form=onnx&network=pausing"),
      {{"Host", "127.0.0.1:7071"}});
  // As of one that has shut its way down.
  exchange.is_left = [&] { return !exchange.response().body.empty(); };
  router_.Serve(exchange);
  EXPECT_EQ(exchange.response().body, "two of 4");
}

TEST_F(ApiTest, AnExportIsNotWaitedForWithoutItsClient) {
  FakeExchange exchange(
      "GET", absl::StrCat("/api/v1/jobs/", kJob, "/checkpoints/", kCheckpoint, "/export?form=onnx&network=slow"),
      {{"Host", "127.0.0.1:7071"}});
  ServeUntilItWaits(&exchange);
}

// A job of 3000 reports, of which the older were merged, and a line after the 1500th.
struct MergedLog {
  static constexpr uint64_t kLast = 3001;
  static constexpr int kNewest = 20;

  MergedLog() {
    JobWrite write = CreateWrite(1);
    write.record.job.set_id(kJob);
    write.record.job.set_last_sequence(kLast);
    write.events.clear();
    for (uint64_t sequence = 1; sequence <= kLast; ++sequence) {
      write.events.push_back(TestEvent(sequence));
      if (sequence == 1501) continue;
      const auto step = static_cast<int64_t>(sequence > 1501 ? sequence - 1 : sequence);
      write.events.back().mutable_step()->set_first_step(step);
      write.events.back().mutable_step()->set_last_step(step);
    }
    EXPECT_TRUE(WriteAndWait(*store_, std::move(write)).ok());
    for (int64_t merged = 1; merged > 0;) {
      std::promise<absl::Status> done;
      const auto merge = [&](Database& database) {
        const auto pass = MergeOldReports(database, kJob, 0, kNewest, 10000);
        if (pass.ok()) merged = pass->merged;
        return pass.status();
      };
      store_->Change(merge, [&](const absl::Status& status) { done.set_value(status); });
      const absl::Status status = done.get_future().get();
      EXPECT_TRUE(status.ok()) << status;
      if (!status.ok()) break;
    }
  }

  TempDir dir_;
  std::unique_ptr<Store> store_ = *Store::Open({.state_dir = dir_.path()});
  EventLog log_{store_.get()};
};

// The log is there before the API that reads it.
class MergedEventsTest : public MergedLog, public ApiTest {
 protected:
  MergedEventsTest() : ApiTest(&log_) {}

  // Sequence numbers of what the query gives.
  std::vector<uint64_t> Asked(const std::string& query) {
    const FakeExchange exchange = Fetched(absl::StrCat("/api/v1/jobs/", kJob, "/events?", query));
    EXPECT_EQ(exchange.status(), 200) << exchange.response().body;
    std::vector<uint64_t> sequences;
    const std::string mark = "\"sequence\":";
    const std::string& body = exchange.response().body;
    for (size_t at = body.find(mark); at != std::string::npos; at = body.find(mark, at + 1)) {
      const std::string number = body.substr(at + mark.size(), 30);
      sequences.push_back(std::stoull(number.substr(number.find_first_of("0123456789"))));
    }
    return sequences;
  }
  std::vector<uint64_t> Newest(size_t count, bool steps_alone) {
    std::vector<uint64_t> sequences;
    const EventPage page = *store_->Await([](const Database& database) { return database.ReadEvents(kJob, 0, 10000); });
    for (const v1::JobEvent& event : page.events) {
      if (!steps_alone || event.has_step()) sequences.push_back(event.sequence());
    }
    if (sequences.size() > count) sequences.erase(sequences.begin(), sequences.end() - static_cast<int>(count));
    return sequences;
  }
};

TEST_F(MergedEventsTest, ATailHasAsManyAsAreAskedFor) {
  ASSERT_LT(Newest(10000, false).size(), 60u);
  for (const size_t tail : {1, 5, kNewest, kNewest + 1, kNewest + 3, 1000}) {
    EXPECT_EQ(Asked(absl::StrCat("tail=", tail)), Newest(tail, false)) << tail;
    EXPECT_EQ(Asked(absl::StrCat("kinds=step&tail=", tail)), Newest(tail, true)) << tail;
    EXPECT_EQ(Asked(absl::StrCat("kinds=step,log&tail=", tail)), Newest(tail, false)) << tail;
  }
  EXPECT_THAT(Asked("kinds=log&tail=3"), ElementsAre(1501));
}

// A server that asks for tokens, and has given none.
class StrangerTest : public ::testing::Test {
 protected:
  StrangerTest() {
    store_ = Store::Open({.state_dir = dir_.path() + "/state"}).value();
    tokens_ = TokenBook::Open(store_.get(), &SystemClock()).value();
    gate_ = std::make_unique<CallGate>(CallGate::Options{.tokens = tokens_.get()});
    audit_ = AuditLog::Open({.path = AuditPath()}).value();
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    JsonApi::Options options;
    options.gate = gate_.get();
    options.fleet = &fleet_;
    options.audit = audit_.get();
    options.clock = &clock_;
    api_ = std::make_unique<JsonApi>(options, server_->InProcessChannel({}));
    api_->AddRoutes(&router_);
  }
  ~StrangerTest() override {
    api_->Stop();
    server_->Shutdown();
  }

  std::string AuditPath() const { return dir_.path() + "/audit.log"; }
  void ExpectRefused(const std::string& path, const std::string& authorization, const std::string& method = "POST") {
    FakeExchange exchange(
        method, path,
        {{"Host", "127.0.0.1:7071"}, {"Content-Type", "application/json"}, {"Authorization", authorization}}, "{}");
    router_.Serve(exchange);
    EXPECT_EQ(exchange.status(), 401) << path;
  }
  // Without their times.
  std::vector<std::string> AuditLines() const {
    std::ifstream file(AuditPath());
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line.substr(line.find(',') + 1));
    return lines;
  }

  TempDir dir_;
  FakeClock clock_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<TokenBook> tokens_;
  std::unique_ptr<CallGate> gate_;
  std::unique_ptr<AuditLog> audit_;
  FleetFeed fleet_;
  FakeService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<JsonApi> api_;
  Router router_;
};

TEST_F(StrangerTest, ChangesThatTheServiceNeverSeesAreWrittenDown) {
  const std::string unknown = absl::StrCat("Bearer ampd_", std::string(64, 'a'));
  ExpectRefused("/api/v1/submit", unknown);
  ExpectRefused(absl::StrCat("/api/v1/jobs/", kJob, "/cancel"), "Basic YTpi");
  ExpectRefused("/api/v1/devices/cpu:0/drain", "Bearer");
  // Changes nothing.
  ExpectRefused("/api/v1/submit?validate_only=true", unknown);
  ExpectRefused(absl::StrCat("/api/v1/jobs/", kJob), "Basic YTpi", "GET");
  const std::string peer = R"("peer":"ipv4:127.0.0.1:4321",)";
  EXPECT_THAT(
      AuditLines(),
      ElementsAre(absl::StrCat(peer, R"("method":"CreateJob","code":"UNAUTHENTICATED"})"),
                  absl::StrCat(peer, R"("method":"CancelJob","resource":")", kJob, R"(","code":"UNAUTHENTICATED"})"),
                  absl::StrCat(peer, R"("method":"DrainDevice","resource":"cpu:0","code":"UNAUTHENTICATED"})")));
}

TEST_F(StrangerTest, ChangesThatAreRefusedForThemselvesAreWrittenDown) {
  v1::CreateTokenRequest token;
  token.set_user("ann");
  token.set_role(v1::SUBMITTER);
  std::promise<std::string> made;
  tokens_->Create(token,
                  [&](absl::StatusOr<v1::CreateTokenResponse> created) { made.set_value(created.value().secret()); });
  const std::string secret = made.get_future().get();
  const auto answer = [&](const std::string& path, const std::string& body, HttpHeaders more,
                          const std::string& type = "application/json") {
    HttpHeaders headers = {
        {"Host", "127.0.0.1:7071"}, {"Content-Type", type}, {"Authorization", absl::StrCat("Bearer ", secret)}};
    headers.insert(headers.end(), more.begin(), more.end());
    FakeExchange exchange("POST", path, headers, body);
    router_.Serve(exchange);
    return exchange.status();
  };
  const std::string cancel = absl::StrCat("/api/v1/jobs/", kJob, "/cancel");
  EXPECT_EQ(answer(cancel, "{}", {{"Origin", "http://evil.example"}}), 403);
  EXPECT_EQ(answer(cancel, "{\"no\": 1}", {}), 400);
  EXPECT_EQ(answer(cancel, "{}", {}, "text/plain"), 415);
  EXPECT_EQ(answer(absl::StrCat(cancel, "?x=1"), "{}", {}), 400);
  EXPECT_EQ(answer("/api/v1/submit", "nane: a", {}, "application/yaml"), 400);
  EXPECT_EQ(answer("/api/v1/submit", std::string(size_t{1} << 20, 'a'), {}, "application/yaml"), 413);
  // Change nothing; reaches the service, which has its own line.
  EXPECT_EQ(answer("/api/v1/submit?validate_only=true", "nane: a", {}, "application/yaml"), 400);
  EXPECT_EQ(answer("/api/v1/session", "{}", {}), 400);
  EXPECT_EQ(answer(cancel, "{}", {}), 501);
  std::vector<std::string> lines = AuditLines();
  const std::string peer = R"("peer":"ipv4:127.0.0.1:4321",)", end = R"(,"code":"INVALID_ARGUMENT"})";
  const std::string of_job = absl::StrCat(R"("method":"CancelJob","resource":")", kJob, "\"");
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[0], absl::StrCat(peer, of_job, R"(,"code":"PERMISSION_DENIED"})"))
      << "as of nobody: a page of another site uses whoever has signed in";
  for (size_t i = 1; i < lines.size(); ++i) {
    EXPECT_THAT(lines[i], HasSubstr(R"("user":"ann",)"));
    lines[i] = lines[i].substr(lines[i].find(R"("peer")"));
  }
  const std::string cancelled = absl::StrCat(peer, of_job, end);
  const std::string submitted = absl::StrCat(peer, R"("method":"CreateJob")", end);
  lines.erase(lines.begin());
  EXPECT_THAT(lines, ElementsAre(cancelled, cancelled, cancelled, submitted, submitted));
}

TEST_F(StrangerTest, OfAFloodTheRestIsCounted) {
  for (int i = 0; i < 50; ++i) ExpectRefused("/api/v1/submit", "Bearer x");
  audit_.reset();
  const std::vector<std::string> lines = AuditLines();
  ASSERT_EQ(lines.size(), 11u);
  EXPECT_THAT(lines.back(), HasSubstr(R"("left_out":40)"));
}

}  // namespace
}  // namespace ampd
