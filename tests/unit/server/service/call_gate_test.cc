#include "server/service/call_gate.h"

#include <grpcpp/generic/generic_stub.h>

#include <fstream>
#include <iterator>

#include "server/service/call_peer.h"
#include "tests/unit/server/service/service_fixture.h"

namespace ampd {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class CallGateTest : public ServiceFixture {
 protected:
  CallGateTest() {
    asks_for_tokens_ = true;
    Train([](FakeTrainer& trainer) -> absl::StatusOr<train::Outcome> {
      EXPECT_TRUE(trainer.Emit("a").ok());
      return train::Outcome::kCompleted;
    });
  }

  v1::CreateTokenResponse TokenOf(const std::string& user, v1::Role role) {
    v1::CreateTokenRequest request;
    request.set_user(user);
    request.set_role(role);
    std::promise<v1::CreateTokenResponse> made;
    tokens_->Create(request, [&](absl::StatusOr<v1::CreateTokenResponse> token) { made.set_value(*token); });
    return made.get_future().get();
  }

  // The answer to a call of any method, by its name, with an empty request.
  grpc::Status CallByName(const std::string& path, const std::vector<std::string>& authorizations) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    for (const std::string& value : authorizations) context.AddMetadata("authorization", value);
    grpc::GenericStub stub(channel_);
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareCall(&context, path, &queue);
    void* tag = nullptr;
    bool ok = false;
    call->StartCall(this);
    queue.Next(&tag, &ok);
    grpc::ByteBuffer empty;
    grpc::Slice nothing;
    empty = grpc::ByteBuffer(&nothing, 1);
    call->WriteLast(empty, grpc::WriteOptions(), this);
    queue.Next(&tag, &ok);
    for (bool more = true; more;) {
      grpc::ByteBuffer answer;
      call->Read(&answer, this);
      queue.Next(&tag, &more);
    }
    grpc::Status status;
    call->Finish(&status, this);
    queue.Next(&tag, &ok);
    return status;
  }

  template <typename Request, typename Response>
  grpc::Status CallAs(const std::string& secret,
                      grpc::Status (v1::TrainingService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                        Response*),
                      const Request& request, Response* response) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + secret);
    return ((*stub_).*method)(&context, request, response);
  }

  // A dataset of one file "a".
  grpc::Status Send(const std::string& secret, const std::string& name, bool commit) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + secret);
    v1::Dataset dataset;
    const auto writer = stub_->UploadDataset(&context, &dataset);
    v1::UploadDatasetRequest request;
    request.set_name(name);
    request.set_file("a");
    request.set_data("x,y\n1,2\n");
    request.set_file_size(static_cast<int64_t>(request.data().size()));
    request.set_file_sha256(Sha256Hex(request.data()));
    request.set_commit(commit);
    // False where the call is refused, which its status tells.
    writer->Write(request);
    writer->WritesDone();
    return writer->Finish();
  }

  std::vector<std::string> AuditLines() {
    std::ifstream file(state_dir_ + "/audit.log");
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
};

// Declared, but not there yet.
bool IsUnserved(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNIMPLEMENTED && status.error_message().empty();
}

std::vector<std::string> Methods() {
  const auto* service = v1::GetJobRequest::descriptor()->file()->FindServiceByName("TrainingService");
  std::vector<std::string> paths;
  for (int i = 0; i < service->method_count(); ++i) {
    paths.push_back("/" + service->full_name() + "/" + service->method(i)->name());
  }
  return paths;
}

TEST_F(CallGateTest, NoMethodAnswersWithoutAToken) {
  const std::string secret = TokenOf("ann", v1::ADMIN).secret();
  for (const std::string& path : Methods()) {
    for (const std::vector<std::string>& shown : {std::vector<std::string>{},
                                                  {"Bearer wrong"},
                                                  {"Basic " + secret},
                                                  {secret},
                                                  {"Bearer"},
                                                  {""},
                                                  {"Bearer " + secret, "Bearer " + secret}}) {
      const grpc::Status status = CallByName(path, shown);
      if (IsUnserved(status)) continue;
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << path << " " << status.error_message();
      EXPECT_THAT(status.error_message(), Not(HasSubstr(secret)));
    }
  }
}

TEST_F(CallGateTest, EveryMethodChecksTheRoleOfItsRule) {
  for (const v1::Role role : {v1::VIEWER, v1::SUBMITTER, v1::ADMIN}) {
    const std::string secret = TokenOf("ann", role).secret();
    for (const std::string& path : Methods()) {
      const grpc::Status status = CallByName(path, {"bearer " + secret});
      if (IsUnserved(status)) continue;
      EXPECT_NE(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << path;
      const bool may = FindMethodRule(path)->role <= role;
      EXPECT_EQ(status.error_code() != grpc::StatusCode::PERMISSION_DENIED, may)
          << path << " " << v1::Role_Name(role) << " " << status.error_message();
    }
  }
}

TEST_F(CallGateTest, WhatOnlyAnAdminMayDoIsInTheAuditLogForGood) {
  const std::string ann = TokenOf("ann", v1::SUBMITTER).secret(), root = TokenOf("root", v1::ADMIN).secret();
  v1::Job job;
  ASSERT_TRUE(CallAs(root, &v1::TrainingService::Stub::CreateJob, GoodRequest(), &job).ok());
  v1::CreateTokenRequest create;
  create.set_user("bob");
  create.set_role(v1::VIEWER);
  v1::CreateTokenResponse made;
  EXPECT_FALSE(CallAs(ann, &v1::TrainingService::Stub::CreateToken, create, &made).ok());
  EXPECT_EQ(audit_syncs_, 0) << "who submits, or is refused, makes the disk busy";
  EXPECT_EQ(AuditLines().size(), 2u);
  ASSERT_TRUE(CallAs(root, &v1::TrainingService::Stub::CreateToken, create, &made).ok());
  EXPECT_EQ(audit_syncs_, 1);
}

TEST_F(CallGateTest, JobsAreTheirUsersAlone) {
  const std::string ann = TokenOf("ann", v1::SUBMITTER).secret(), bob = TokenOf("bob", v1::SUBMITTER).secret(),
                    root = TokenOf("root", v1::ADMIN).secret();
  v1::Job job;
  v1::CreateJobRequest create = GoodRequest();
  create.set_request_id("r1");
  ASSERT_TRUE(CallAs(ann, &v1::TrainingService::Stub::CreateJob, create, &job).ok());
  EXPECT_EQ(job.user(), "ann");
  v1::Job bobs;
  ASSERT_TRUE(CallAs(bob, &v1::TrainingService::Stub::CreateJob, create, &bobs).ok());
  EXPECT_NE(bobs.id(), job.id()) << "users choose request ids without knowing of each other";
  v1::Job again;
  ASSERT_TRUE(CallAs(ann, &v1::TrainingService::Stub::CreateJob, create, &again).ok());
  EXPECT_EQ(again.id(), job.id());

  v1::GetJobRequest get;
  // So long that it is ann's alone, so short that it may be bob's too.
  for (const size_t length : {26u, 4u}) {
    get.set_job_id(job.id().substr(0, length));
    v1::Job found;
    ASSERT_TRUE(CallAs(ann, &v1::TrainingService::Stub::GetJob, get, &found).ok()) << length;
    EXPECT_EQ(found.id(), job.id());
  }
  get.set_job_id(job.id());
  const grpc::Status other = CallAs(bob, &v1::TrainingService::Stub::GetJob, get, &again);
  EXPECT_EQ(other.error_code(), grpc::StatusCode::NOT_FOUND);
  get.set_job_id("01zzzzzzzzzzzzzzzzzzzzzzzz");
  const grpc::Status none = CallAs(bob, &v1::TrainingService::Stub::GetJob, get, &again);
  EXPECT_EQ(none.error_code(), other.error_code());
  EXPECT_EQ(none.error_message(), "no job 01zzzzzzzzzzzzzzzzzzzzzzzz");
  EXPECT_EQ(other.error_message(), "no job " + job.id()) << "as if there were none";

  const auto listed = [&](const std::string& secret) {
    v1::ListJobsResponse jobs;
    EXPECT_TRUE(CallAs(secret, &v1::TrainingService::Stub::ListJobs, v1::ListJobsRequest(), &jobs).ok());
    std::vector<std::string> ids;
    for (const v1::Job& one : jobs.jobs()) ids.push_back(one.id());
    return ids;
  };
  EXPECT_THAT(listed(ann), ElementsAre(job.id()));
  EXPECT_THAT(listed(bob), ElementsAre(bobs.id()));
  EXPECT_THAT(listed(root), ElementsAre(bobs.id(), job.id()));
  EXPECT_THAT(listed(TokenOf("carl", v1::VIEWER).secret()), IsEmpty());
}

TEST_F(CallGateTest, JobsThatASpecNamesMustBeTheCallers) {
  const std::string ann = TokenOf("ann", v1::SUBMITTER).secret(), bob = TokenOf("bob", v1::SUBMITTER).secret();
  v1::Job job;
  ASSERT_TRUE(CallAs(ann, &v1::TrainingService::Stub::CreateJob, GoodRequest(), &job).ok());
  for (const char* field : {"after", "after_ok", "start_from"}) {
    v1::CreateJobRequest create = GoodRequest();
    if (std::string(field) == "after") create.mutable_spec()->add_after(job.id());
    if (std::string(field) == "after_ok") create.mutable_spec()->add_after_ok(job.id());
    if (std::string(field) == "start_from") create.mutable_spec()->mutable_start_from()->set_job_id(job.id());
    v1::Job made;
    const grpc::Status status = CallAs(bob, &v1::TrainingService::Stub::CreateJob, create, &made);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_THAT(status.error_message(), HasSubstr("no job " + job.id())) << field;
    v1::PlanJobRequest plan;
    *plan.mutable_spec() = create.spec();
    v1::PlanReport report;
    EXPECT_THAT(CallAs(bob, &v1::TrainingService::Stub::PlanJob, plan, &report).error_message(),
                HasSubstr("no job " + job.id()))
        << field;
  }
}

TEST_F(CallGateTest, DatasetsAreEverybodysToTrainOnAndTheirUsersToDelete) {
  const std::string ann = TokenOf("ann", v1::SUBMITTER).secret(), bob = TokenOf("bob", v1::SUBMITTER).secret(),
                    root = TokenOf("root", v1::ADMIN).secret();
  ASSERT_TRUE(Send(ann, "d", true).ok());
  ASSERT_TRUE(Send(ann, "begun", false).ok());
  EXPECT_EQ(Send(bob, "begun", true).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  v1::ListDatasetsResponse listed;
  ASSERT_TRUE(CallAs(bob, &v1::TrainingService::Stub::ListDatasets, v1::ListDatasetsRequest(), &listed).ok());
  ASSERT_EQ(listed.datasets_size(), 2);
  EXPECT_EQ(listed.datasets(1).user(), "ann");

  v1::CreateJobRequest create = GoodRequest();
  create.mutable_spec()->mutable_data()->mutable_train()->mutable_csv()->set_path("dataset:d/a");
  create.mutable_spec()->mutable_data()->mutable_train()->mutable_csv()->add_targets("y");
  // Never starts.
  create.mutable_spec()->mutable_not_before()->set_seconds(absl::ToUnixSeconds(absl::Now() + absl::Hours(1)));
  v1::Job bobs;
  const grpc::Status created = CallAs(bob, &v1::TrainingService::Stub::CreateJob, create, &bobs);
  ASSERT_TRUE(created.ok()) << created.error_message();
  const auto remove = [&](const std::string& secret, const std::string& name) {
    v1::DeleteDatasetRequest request;
    request.set_name(name);
    v1::DeleteDatasetResponse response;
    return CallAs(secret, &v1::TrainingService::Stub::DeleteDataset, request, &response);
  };
  EXPECT_EQ(remove(bob, "d").error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(remove(bob, "begun").error_code(), grpc::StatusCode::PERMISSION_DENIED);
  for (const auto& [secret, said] : {std::pair(ann, std::string("another user's job")), {root, "job " + bobs.id()}}) {
    const grpc::Status refused = remove(secret, "d");
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_EQ(refused.error_message(), said + " names dataset d and has not ended");
  }
  v1::CancelJobRequest cancel;
  cancel.set_job_id(bobs.id());
  ASSERT_TRUE(CallAs(bob, &v1::TrainingService::Stub::CancelJob, cancel, &bobs).ok());
  EXPECT_TRUE(remove(ann, "d").ok());
  EXPECT_TRUE(remove(root, "begun").ok());
}

TEST_F(CallGateTest, ARevokedTokensStreamsEnd) {
  const v1::CreateTokenResponse ann = TokenOf("ann", v1::SUBMITTER);
  const std::string root = TokenOf("root", v1::ADMIN).secret();
  v1::CreateJobRequest create = GoodRequest();
  // Never starts, so that its watch never ends.
  create.mutable_spec()->mutable_not_before()->set_seconds(absl::ToUnixSeconds(absl::Now() + absl::Hours(1)));
  v1::Job job;
  ASSERT_TRUE(CallAs(ann.secret(), &v1::TrainingService::Stub::CreateJob, create, &job).ok());
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer " + ann.secret());
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  v1::WatchJobRequest watch;
  watch.set_job_id(job.id());
  const auto reader = stub_->WatchJob(&context, watch);
  v1::JobEvent event;
  ASSERT_TRUE(reader->Read(&event));
  v1::RevokeTokenRequest revoke;
  revoke.set_token_id(ann.token().id());
  v1::Token token;
  ASSERT_TRUE(CallAs(root, &v1::TrainingService::Stub::RevokeToken, revoke, &token).ok());
  while (reader->Read(&event)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("revoked"));
}

TEST_F(CallGateTest, AnExpiredTokensStreamsEndAndOthersDoNot) {
  v1::CreateTokenRequest two_seconds;
  two_seconds.set_user("ann");
  two_seconds.set_role(v1::SUBMITTER);
  two_seconds.set_lifetime_seconds(2);
  std::promise<v1::CreateTokenResponse> made;
  tokens_->Create(two_seconds, [&](absl::StatusOr<v1::CreateTokenResponse> token) { made.set_value(*token); });
  const v1::CreateTokenResponse brief = made.get_future().get(), lasting = TokenOf("ann", v1::SUBMITTER);
  v1::CreateJobRequest create = GoodRequest();
  // Never starts, so that its watch never ends.
  create.mutable_spec()->mutable_not_before()->set_seconds(absl::ToUnixSeconds(absl::Now() + absl::Hours(1)));
  v1::Job job;
  ASSERT_TRUE(CallAs(lasting.secret(), &v1::TrainingService::Stub::CreateJob, create, &job).ok());
  v1::WatchJobRequest watch;
  watch.set_job_id(job.id());
  struct Watched {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::JobEvent>> reader;
  };
  Watched brief_watch, lasting_watch;
  for (const auto& [watched, token] : {std::pair(&brief_watch, &brief), {&lasting_watch, &lasting}}) {
    watched->context.AddMetadata("authorization", "Bearer " + token->secret());
    watched->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    watched->reader = stub_->WatchJob(&watched->context, watch);
    v1::JobEvent event;
    ASSERT_TRUE(watched->reader->Read(&event));
  }
  v1::JobEvent event;
  while (brief_watch.reader->Read(&event)) {
  }
  const grpc::Status status = brief_watch.reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("token " + brief.token().id() + " expired at "));
  // The other's goes on: it has what comes next.
  v1::CancelJobRequest cancel;
  cancel.set_job_id(job.id());
  ASSERT_TRUE(CallAs(lasting.secret(), &v1::TrainingService::Stub::CancelJob, cancel, &job).ok());
  std::vector<v1::JobEvent> events;
  while (lasting_watch.reader->Read(&event)) events.push_back(event);
  EXPECT_TRUE(lasting_watch.reader->Finish().ok());
  EXPECT_EQ(LastState(events), v1::Job::CANCELLED);
}

TEST_F(CallGateTest, ASecretInPlaceOfAnIdIsNotWrittenDown) {
  const v1::CreateTokenResponse ann = TokenOf("ann", v1::SUBMITTER), bob = TokenOf("bob", v1::SUBMITTER);
  const std::string root = TokenOf("root", v1::ADMIN).secret();
  v1::RevokeTokenRequest revoke;
  v1::Token token;
  revoke.set_token_id(ann.secret());
  ASSERT_TRUE(CallAs(root, &v1::TrainingService::Stub::RevokeToken, revoke, &token).ok());
  EXPECT_EQ(token.id(), ann.token().id());
  for (const std::string& given : {bob.secret().substr(5), bob.secret().substr(0, 30), bob.secret().substr(0, 20)}) {
    revoke.set_token_id(given);
    const grpc::Status status = CallAs(root, &v1::TrainingService::Stub::RevokeToken, revoke, &token);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.error_message(), Not(HasSubstr(bob.secret().substr(5, 8))));
  }
  const std::vector<std::string> lines = AuditLines();
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_THAT(lines[0], HasSubstr(R"("made":")" + ann.token().id() + R"(","code":"OK"})"));
  for (const std::string& line : lines) {
    EXPECT_THAT(line, Not(HasSubstr(ann.secret().substr(5, 8))));
    EXPECT_THAT(line, Not(HasSubstr(bob.secret().substr(5, 8))));
  }
}

TEST_F(CallGateTest, ACallIsWrittenDownBeforeItsAnswer) {
  // Whose refused calls all have lines.
  const std::string ann = TokenOf("ann", v1::ADMIN).secret();
  v1::CancelJobRequest cancel;
  cancel.set_job_id("01zzzzzzzzzzzzzzzzzzzzzzzz");
  for (size_t calls = 1; calls <= 100; ++calls) {
    v1::Job job;
    EXPECT_EQ(CallAs(ann, &v1::TrainingService::Stub::CancelJob, cancel, &job).error_code(),
              grpc::StatusCode::NOT_FOUND);
    ASSERT_EQ(AuditLines().size(), calls);
  }
  server_->Shutdown();
  server_->Wait();
  EXPECT_EQ(AuditLines().size(), 100u) << "once";
}

TEST_F(CallGateTest, CallsThatChangeSomethingAreWrittenDownWhoeverMakesThem) {
  const v1::CreateTokenResponse ann = TokenOf("ann", v1::SUBMITTER);
  const std::string viewer = TokenOf("vic", v1::VIEWER).secret();
  v1::CreateJobRequest create = GoodRequest();
  create.mutable_spec()->set_name("private-name");
  v1::Job job;
  ASSERT_TRUE(CallAs(ann.secret(), &v1::TrainingService::Stub::CreateJob, create, &job).ok());
  create.set_validate_only(true);
  v1::Job checked;
  ASSERT_TRUE(CallAs(ann.secret(), &v1::TrainingService::Stub::CreateJob, create, &checked).ok());
  v1::CancelJobRequest cancel;
  cancel.set_job_id(job.id());
  EXPECT_FALSE(CallAs(viewer, &v1::TrainingService::Stub::CancelJob, cancel, &checked).ok());
  EXPECT_FALSE(CallAs("wrong", &v1::TrainingService::Stub::CancelJob, cancel, &checked).ok());
  v1::GetJobRequest get;
  get.set_job_id(job.id());
  EXPECT_TRUE(CallAs(ann.secret(), &v1::TrainingService::Stub::GetJob, get, &checked).ok());
  const std::vector<std::string> lines = AuditLines();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines,
              Contains(AllOf(HasSubstr(R"("user":"ann","token":")" + ann.token().id() + R"(","role":"SUBMITTER")"),
                             HasSubstr(R"("peer":"ipv4:127.0.0.1:)"),
                             HasSubstr(R"("method":"CreateJob","made":")" + job.id() + R"(","code":"OK"})"))));
  EXPECT_THAT(lines,
              Contains(AllOf(HasSubstr(R"("user":"vic")"), HasSubstr(R"("method":"CancelJob","resource":")" + job.id() +
                                                                     R"(","code":"PERMISSION_DENIED")"))));
  EXPECT_THAT(lines, Contains(AllOf(Not(HasSubstr("user")), HasSubstr(R"("code":"UNAUTHENTICATED")"))));
  for (const std::string& line : lines) {
    for (const std::string& secret : {ann.secret(), viewer, std::string("private-name")}) {
      EXPECT_THAT(line, Not(HasSubstr(secret)));
    }
  }
}

// The peer that is written down of a call with kHttpPeerKey.
TEST_F(CallGateTest, OnlyCallsFromWithinSayWhereTheyComeFrom) {
  const std::string ann = TokenOf("ann", v1::SUBMITTER).secret();
  v1::CancelJobRequest cancel;
  cancel.set_job_id("01zzzzzzzzzzzzzzzzzzzzzzzz");
  const auto call = [&](const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + ann);
    context.AddMetadata(kHttpPeerKey, "ipv4:10.9.8.7:65");
    v1::Job job;
    EXPECT_EQ(v1::TrainingService::NewStub(channel)->CancelJob(&context, cancel, &job).error_code(),
              grpc::StatusCode::NOT_FOUND);
    return AuditLines().back();
  };
  EXPECT_THAT(call(channel_), AllOf(HasSubstr(R"("peer":"ipv4:127.0.0.1:)"), Not(HasSubstr("10.9.8.7"))));
  EXPECT_THAT(call(server_->InProcessChannel({})), HasSubstr(R"("peer":"ipv4:10.9.8.7:65")"));
}

TEST(IsWithinProcessTest, NoSocketIs) {
  for (const char* peer :
       {"ipv4:127.0.0.1:1", "ipv6:[::1]:1", "unix:", "unix:/a", "unix-abstract:a", "vsock:1:2", "fd:3", "dns:///a"}) {
    EXPECT_FALSE(IsWithinProcess(peer)) << peer;
  }
}

}  // namespace
}  // namespace ampd
