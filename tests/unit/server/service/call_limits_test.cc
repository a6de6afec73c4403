#include "server/service/call_limits.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/service/grpc_status.h"
#include "server/service/limited_service.h"
#include "tests/unit/server/store/store_test_util.h"

namespace ampd {
namespace {

constexpr std::chrono::seconds kDeadline(60);
// More than a client's window that does not read.
constexpr int64_t kMessage = 1 << 20;

v1::ServerConfig::CallLimits LimitsOf(int reads, int others = 1000) {
  v1::ServerConfig::CallLimits limits;
  limits.set_reads(reads);
  limits.set_writes(others);
  limits.set_planning(others);
  limits.set_watchers(others);
  limits.set_transfers(others);
  limits.set_request_bytes(1000);
  limits.set_answer_bytes(4 * kMessage);
  return limits;
}

// RESOURCE_EXHAUSTED, and when to come back.
void ExpectRefused(const grpc::Status& status, const std::string& what) {
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << what << ": " << status.error_message();
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details())) << what;
  ASSERT_EQ(details.details_size(), 1) << what;
  google::rpc::RetryInfo info;
  ASSERT_TRUE(details.details(0).UnpackTo(&info)) << what;
  EXPECT_GT(info.retry_delay().seconds() * 1'000'000'000 + info.retry_delay().nanos(), 0) << what;
}

// Ends with its only event.
class OneEvent final : public grpc::ServerWriteReactor<v1::JobEvent> {
 public:
  OneEvent() {
    event_.mutable_log()->set_text(std::string(kMessage - 100, 'x'));
    StartWriteAndFinish(&event_, grpc::WriteOptions(), grpc::Status::OK);
  }
  void OnDone() override { delete this; }

 private:
  v1::JobEvent event_;
};

// Reads that last until they are let go; the length of the job's id is taken for what the request takes.
class SlowService final : public v1::TrainingService::CallbackService {
 public:
  explicit SlowService(CallLimits* limits) : limits_(limits) {}

  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context, const v1::GetJobRequest* request,
                                   v1::Job*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const absl::Status room =
        limits_->Admit(context, CallClass::kReads, static_cast<int64_t>(request->job_id().size()), UserOf(*context));
    if (!room.ok()) {
      reactor->Finish(ToGrpcStatus(room));
      return reactor;
    }
    Hold(reactor);
    return reactor;
  }
  // Of a caller who may not, and whose refusal does not get through.
  grpc::ServerUnaryReactor* GetSweep(grpc::CallbackServerContext* context, const v1::GetSweepRequest*,
                                     v1::JobSweep*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    limits_->Refuse(context);
    Hold(reactor);
    return reactor;
  }
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context, const v1::CancelJobRequest*,
                                      v1::Job*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(limits_->Admit(context, CallClass::kWrites, 0, "")));
    return reactor;
  }
  grpc::ServerWriteReactor<v1::JobEvent>* WatchJob(grpc::CallbackServerContext* context,
                                                   const v1::WatchJobRequest*) override {
    EXPECT_TRUE(limits_->Admit(context, CallClass::kWatchers, 0, "").ok());
    return new OneEvent();
  }

  void LetGo() {
    const std::lock_guard lock(mutex_);
    for (grpc::ServerUnaryReactor* reactor : std::exchange(held_, {})) reactor->Finish(grpc::Status::OK);
  }
  size_t Held() {
    const std::lock_guard lock(mutex_);
    return held_.size();
  }

 private:
  static std::string UserOf(const grpc::CallbackServerContext& context) {
    const auto user = context.client_metadata().find("user");
    return user == context.client_metadata().end() ? "" : std::string(user->second.data(), user->second.size());
  }
  void Hold(grpc::ServerUnaryReactor* reactor) {
    const std::lock_guard lock(mutex_);
    held_.push_back(reactor);
  }

  CallLimits* const limits_;
  std::mutex mutex_;
  std::vector<grpc::ServerUnaryReactor*> held_;
};

class CallLimitsTest : public testing::Test {
 protected:
  void Serve(std::unique_ptr<grpc::Service> service) {
    service_ = std::move(service);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(service_.get());
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
    interceptors.push_back(limits_.MakeInterceptors());
    builder.experimental().SetInterceptorCreators(std::move(interceptors));
    server_ = builder.BuildAndStart();
  }
  ~CallLimitsTest() override {
    if (slow_ != nullptr) slow_->LetGo();
    for (std::thread& call : calls_) call.join();
    if (server_ != nullptr) server_->Shutdown();
  }

  // Connections of their own.
  std::shared_ptr<grpc::Channel> Connect() {
    grpc::ChannelArguments arguments;
    arguments.SetInt("ampd.test.connection", ++connections_);
    // Who does not read is sent no more than that.
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port_), grpc::InsecureChannelCredentials(), arguments);
  }
  static grpc::Status Get(const std::shared_ptr<grpc::Channel>& channel, size_t bytes = 0,
                          const std::string& user = "") {
    grpc::ClientContext context;
    if (!user.empty()) context.AddMetadata("user", user);
    context.set_deadline(std::chrono::system_clock::now() + kDeadline);
    v1::GetJobRequest request;
    request.set_job_id(std::string(bytes, 'x'));
    v1::Job job;
    return v1::TrainingService::NewStub(channel)->GetJob(&context, request, &job);
  }
  // A call that is to be held; returns once it is.
  void Hold(const std::shared_ptr<grpc::Channel>& channel, size_t bytes = 0, const std::string& user = "") {
    const int64_t before = limits_.UnderWay(CallClass::kReads);
    calls_.emplace_back([channel, bytes, user] { EXPECT_TRUE(Get(channel, bytes, user).ok()); });
    AwaitReads(before + 1);
  }
  void AwaitReads(int64_t calls) {
    Await([&] { return limits_.UnderWay(CallClass::kReads) == calls; }, "reads");
  }
  static void Await(const std::function<bool()>& condition, const std::string& what) {
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << what;
      std::this_thread::yield();
    }
  }

  std::mutex mutex_;
  std::vector<CallClass> refused_;
  CallLimits limits_{LimitsOf(4), [this](CallClass call_class) {
                       const std::lock_guard lock(mutex_);
                       refused_.push_back(call_class);
                     }};
  SlowService* slow_ = nullptr;
  int port_ = 0;
  int connections_ = 0;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::thread> calls_;
};

TEST_F(CallLimitsTest, OneConnectionLeavesRoomForOthers) {
  auto service = std::make_unique<SlowService>(&limits_);
  slow_ = service.get();
  Serve(std::move(service));
  const auto first = Connect(), second = Connect(), third = Connect();
  Hold(first);
  Hold(first);
  ExpectRefused(Get(first), "the third of the first connection");
  Hold(second);
  ExpectRefused(Get(second), "the second of the second connection");
  Hold(third);
  ExpectRefused(Get(Connect()), "one where there are four");
  {
    const std::lock_guard lock(mutex_);
    EXPECT_THAT(refused_, testing::ElementsAre(CallClass::kReads, CallClass::kReads, CallClass::kReads));
  }
  // Other classes have room of their own.
  grpc::ClientContext context;
  v1::Job job;
  EXPECT_TRUE(v1::TrainingService::NewStub(first)->CancelJob(&context, v1::CancelJobRequest(), &job).ok());
  // What is over makes room.
  slow_->LetGo();
  AwaitReads(0);
  Hold(first);
}

TEST_F(CallLimitsTest, AUserLeavesRoomForOthersOverAllConnections) {
  auto service = std::make_unique<SlowService>(&limits_);
  slow_ = service.get();
  Serve(std::move(service));
  const auto first = Connect(), second = Connect();
  Hold(first, 0, "ann");
  Hold(first, 0, "ann");
  ExpectRefused(Get(first, 0, "ann"), "the third of one connection");
  Hold(second, 0, "ann");
  ExpectRefused(Get(Connect(), 0, "ann"), "all for one user");
  Hold(Connect(), 0, "bob");
  ExpectRefused(Get(Connect(), 0, "carl"), "one where there are four");
  slow_->LetGo();
  AwaitReads(0);
  // Likewise what requests take: of 1,000 a user has 750, and of these a connection 500.
  Hold(first, 500, "ann");
  Hold(second, 250, "ann");
  ExpectRefused(Get(Connect(), 1, "ann"), "more than three quarters of it for one user");
  Hold(Connect(), 125, "bob");
}

TEST_F(CallLimitsTest, WhoIsRefusedTakesNoSlotsAndDoesNotPileUp) {
  auto service = std::make_unique<SlowService>(&limits_);
  slow_ = service.get();
  Serve(std::move(service));
  const auto channel = Connect();
  const auto stub = v1::TrainingService::NewStub(channel);
  // Half of 500.
  constexpr size_t kStay = 250;
  struct Refusal {
    grpc::ClientContext context;
    v1::GetSweepRequest request;
    v1::JobSweep answer;
  };
  std::list<Refusal> refusals;
  std::atomic<size_t> answered = 0;
  for (size_t i = 0; i < kStay; ++i) {
    Refusal& refusal = refusals.emplace_back();
    stub->async()->GetSweep(&refusal.context, &refusal.request, &refusal.answer,
                            [&answered](const grpc::Status& status) {
                              EXPECT_TRUE(status.ok()) << status.error_message();
                              ++answered;
                            });
  }
  Await([&] { return slow_->Held() == kStay; }, "all refused calls");
  {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kDeadline);
    v1::JobSweep answer;
    EXPECT_EQ(stub->GetSweep(&context, v1::GetSweepRequest(), &answer).error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_EQ(answered, 0u);
  EXPECT_EQ(limits_.UnderWay(CallClass::kReads), 0);
  Hold(channel);
  Hold(channel);
  {
    const std::lock_guard lock(mutex_);
    EXPECT_THAT(refused_, testing::IsEmpty()) << "it was not for want of room";
  }
  slow_->LetGo();
  Await([&] { return answered == kStay; }, "the refusals");
}

TEST(ClientOfTest, IsTheUserElseTheAddressElseNobodyOfThisMachine) {
  EXPECT_EQ(ClientOf("ann", "ipv4:10.0.0.7:51334"), ClientOf("ann", "ipv4:127.0.0.1:8000"));
  EXPECT_NE(ClientOf("ann", "ipv4:10.0.0.7:51334"), ClientOf("bob", "ipv4:10.0.0.7:51334"));
  EXPECT_EQ(ClientOf("", "ipv4:10.0.0.7:51334"), ClientOf("", "ipv4:10.0.0.7:51335"));
  EXPECT_NE(ClientOf("", "ipv4:10.0.0.7:51334"), ClientOf("", "ipv4:10.0.0.8:51334"));
  EXPECT_EQ(ClientOf("", "ipv6:%5B2001:db8::1%5D:51334"), ClientOf("", "ipv6:%5B2001:db8::2:3%5D:7"));
  EXPECT_NE(ClientOf("", "ipv6:%5B2001:db8::1%5D:51334"), ClientOf("", "ipv6:%5B2001:db8:0:1::1%5D:51334"));
  EXPECT_NE(ClientOf("ipv4:10.0.0.7", "ipv4:10.0.0.8:1"), ClientOf("", "ipv4:10.0.0.7:1")) << "a user of that name";
  for (const char* local : {"ipv4:127.0.0.1:51334", "ipv4:127.1.2.3:1", "ipv6:%5B::1%5D:51334", "unix:", "unix:/a/b",
                            "ipv6:%5B::ffff:127.0.0.1%5D:51334"}) {
    EXPECT_EQ(ClientOf("", local), "") << local;
  }
  EXPECT_NE(ClientOf("", "something else"), "");
}

// Calls of gRPC's own service.
class HealthTest : public CallLimitsTest {
 protected:
  HealthTest() {
    grpc::EnableDefaultHealthCheckService(true);
    Serve(std::make_unique<SlowService>(&limits_));
  }
  ~HealthTest() override {
    for (Call& call : calls_under_way_) call.context.TryCancel();
    for (Call& call : calls_under_way_) End(&call);
    queue_.Shutdown();
  }

  // Whether it was answered; it goes on in that case, if it is a stream.
  bool Ask(const std::shared_ptr<grpc::Channel>& channel, const std::string& method) {
    Call& call = calls_under_way_.emplace_back();
    call.context.set_deadline(std::chrono::system_clock::now() + kDeadline);
    grpc::GenericStub stub(channel);
    call.stream = stub.PrepareCall(&call.context, "/grpc.health.v1.Health/" + method, &queue_);
    call.stream->StartCall(this);
    Next();
    const grpc::Slice nothing;
    call.stream->WriteLast(grpc::ByteBuffer(&nothing, 1), grpc::WriteOptions(), this);
    Next();
    grpc::ByteBuffer answer;
    call.stream->Read(&answer, this);
    const bool answered = Next();
    if (answered && method == "Watch") return true;
    End(&call);
    calls_under_way_.pop_back();
    return answered;
  }
  int WatchAll(const std::shared_ptr<grpc::Channel>& channel) {
    int watches = 0;
    while (Ask(channel, "Watch")) ++watches;
    return watches;
  }

 private:
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
  };
  bool Next() {
    void* tag = nullptr;
    bool ok = false;
    EXPECT_TRUE(queue_.Next(&tag, &ok));
    return ok;
  }
  void End(Call* call) {
    grpc::Status status;
    call->stream->Finish(&status, this);
    Next();
  }

  grpc::CompletionQueue queue_;
  std::list<Call> calls_under_way_;
};

TEST_F(HealthTest, IsAnsweredHoweverManyWatch) {
  const auto first = Connect(), second = Connect(), third = Connect();
  EXPECT_EQ(WatchAll(first), 500) << "half of them on a connection";
  EXPECT_EQ(WatchAll(second), 250) << "three quarters of them for an address";
  EXPECT_EQ(WatchAll(third), 0);
  EXPECT_EQ(limits_.UnderWay(CallClass::kHealthWatchers), 750);
  for (const auto& channel : {first, second, third}) {
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(Ask(channel, "Check")) << i;
  }
}

TEST_F(CallLimitsTest, RequestsShareTheirMemory) {
  auto service = std::make_unique<SlowService>(&limits_);
  slow_ = service.get();
  Serve(std::move(service));
  const auto first = Connect(), second = Connect();
  Hold(first, 400);
  EXPECT_EQ(limits_.RequestBytes(), 400);
  ExpectRefused(Get(first, 101), "more than half of it on one connection");
  Hold(second, 300);
  ExpectRefused(Get(Connect(), 301), "more than is left");
  // It would be refused for ever.
  const grpc::Status never = Get(Connect(), 501);
  EXPECT_EQ(never.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(never.error_message(), testing::HasSubstr("call_limits.request_bytes: 1000"));
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(never.error_details()));
  EXPECT_EQ(details.details_size(), 0) << "when to come back";
  slow_->LetGo();
  AwaitReads(0);
  EXPECT_EQ(limits_.RequestBytes(), 0);
  Hold(first, 500);
}

TEST_F(CallLimitsTest, AnswersThatNobodyTakesLeaveRoomForOthers) {
  auto service = std::make_unique<SlowService>(&limits_);
  slow_ = service.get();
  Serve(std::move(service));
  const auto connection = Connect();
  const auto stub = v1::TrainingService::NewStub(connection);
  const auto deadline = std::chrono::system_clock::now() + kDeadline;
  // Two of four messages are what a connection may leave.
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::JobEvent>>> unread;
  for (int i = 0; i < 2; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    contexts.back()->set_deadline(deadline);
    unread.push_back(stub->WatchJob(contexts.back().get(), v1::WatchJobRequest()));
    Await([&] { return limits_.AnswerBytes() > i * kMessage; }, "an answer that is not read");
  }
  const auto watch = [&](v1::TrainingService::Stub* by) {
    grpc::ClientContext context;
    context.set_deadline(deadline);
    const auto reader = by->WatchJob(&context, v1::WatchJobRequest());
    v1::JobEvent event;
    while (reader->Read(&event)) {
    }
    return reader->Finish();
  };
  EXPECT_EQ(watch(stub.get()).error_code(), grpc::StatusCode::CANCELLED);
  {
    const std::lock_guard lock(mutex_);
    EXPECT_THAT(refused_, testing::ElementsAre(CallClass::kWatchers));
  }
  const grpc::Status other = watch(v1::TrainingService::NewStub(Connect()).get());
  EXPECT_TRUE(other.ok()) << other.error_message();
  for (const auto& context : contexts) context->TryCancel();
  for (const auto& reader : unread) reader->Finish();
  Await([&] { return limits_.AnswerBytes() == 0; }, "the end of all answers");
  EXPECT_TRUE(watch(stub.get()).ok());
}

TEST_F(CallLimitsTest, ACallWhoseClientIsGoneMakesRoom) {
  auto service = std::make_unique<SlowService>(&limits_);
  slow_ = service.get();
  Serve(std::move(service));
  const auto channel = Connect();
  grpc::ClientContext context;
  std::thread cancelled([&] {
    v1::Job job;
    EXPECT_FALSE(v1::TrainingService::NewStub(channel)->GetJob(&context, v1::GetJobRequest(), &job).ok());
  });
  AwaitReads(1);
  context.TryCancel();
  cancelled.join();
  slow_->LetGo();
  AwaitReads(0);
}

// Without a slot for anybody.
class LimitedServiceTest : public testing::Test {
 protected:
  ~LimitedServiceTest() override {
    queue_.Shutdown();
    server_->Shutdown();
  }

  void Serve(const CallGate* gate) {
    TrainingServiceImpl::Options options{"1.2.3", absl::UnixEpoch(), "/checkpoints", "/artifacts", {}};
    options.gate = gate;
    service_ = MakeLimitedTrainingService(&limits_, std::move(options), nullptr, nullptr, nullptr);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_.get());
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
    interceptors.push_back(limits_.MakeInterceptors());
    builder.experimental().SetInterceptorCreators(std::move(interceptors));
    server_ = builder.BuildAndStart();
    stub_ = std::make_unique<grpc::GenericStub>(
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
  }
  grpc::Status Call(const std::string& path, const std::string& secret = "") {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kDeadline);
    if (!secret.empty()) context.AddMetadata("authorization", "Bearer " + secret);
    const grpc::Slice nothing;
    const auto call = stub_->PrepareUnaryCall(&context, path, grpc::ByteBuffer(&nothing, 1), &queue_);
    call->StartCall();
    grpc::ByteBuffer answer;
    grpc::Status status;
    call->Finish(&answer, &status, nullptr);
    void* tag;
    bool ok;
    EXPECT_TRUE(queue_.Next(&tag, &ok));
    return status;
  }
  // Those that this service does not have yet too.
  static std::vector<std::string> Paths() {
    const auto* methods = v1::GetJobRequest::descriptor()->file()->FindServiceByName("TrainingService");
    std::vector<std::string> paths;
    for (int i = 0; i < methods->method_count(); ++i) {
      paths.push_back(absl::StrCat("/ampd.v1.TrainingService/", methods->method(i)->name()));
    }
    EXPECT_GT(paths.size(), 20u);
    return paths;
  }

  static v1::ServerConfig::CallLimits None() {
    v1::ServerConfig::CallLimits none = LimitsOf(0, 0);
    none.set_request_bytes(int64_t{64} << 20);
    return none;
  }

  std::atomic<int> refused_ = 0;
  CallLimits limits_{None(), [this](CallClass) { ++refused_; }};
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::GenericStub> stub_;
};

TEST_F(LimitedServiceTest, EveryCallIsLimited) {
  Serve(nullptr);
  for (const std::string& path : Paths()) ExpectRefused(Call(path), path);
}

TEST_F(LimitedServiceTest, TheCallerIsLookedAtFirst) {
  const TempDir dir;
  const auto store = Store::Open({.state_dir = dir.path() + "/state"}).value();
  const auto tokens = TokenBook::Open(store.get(), &SystemClock()).value();
  v1::CreateTokenRequest request;
  request.set_user("ann");
  request.set_role(v1::VIEWER);
  std::promise<std::string> made;
  tokens->Create(request, [&](absl::StatusOr<v1::CreateTokenResponse> token) { made.set_value(token->secret()); });
  const std::string secret = made.get_future().get();
  const CallGate gate(CallGate::Options{.tokens = tokens.get()});
  Serve(&gate);
  for (const std::string& path : Paths()) {
    EXPECT_EQ(Call(path).error_code(), grpc::StatusCode::UNAUTHENTICATED) << path;
  }
  EXPECT_EQ(Call("/ampd.v1.TrainingService/CreateJob", secret).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(refused_, 0);
  ExpectRefused(Call("/ampd.v1.TrainingService/GetJob", secret), "one who may");
  EXPECT_EQ(refused_, 1);
  server_->Shutdown();
}

}  // namespace
}  // namespace ampd
