// TrainingService's calls about tokens, and who may make any of its calls.
#include <utility>

#include "server/service/answer.h"
#include "server/service/training_service.h"

namespace ampd {
namespace {

absl::Status NoTokens() {
  return absl::FailedPreconditionError("this server asks for no tokens (ampd --auth, auth.tokens)");
}

}  // namespace

absl::StatusOr<Caller> TrainingServiceImpl::Admit(const grpc::CallbackServerContext& context,
                                                  absl::string_view method) const {
  return options_.gate == nullptr ? Anybody() : options_.gate->Admit(context, method);
}

void TrainingServiceImpl::OfOwnJob(const Caller& caller, const std::string& id, grpc::ServerUnaryReactor* reactor,
                                   std::function<void(const std::string& id)> change) {
  const Owner owner = caller.Scope();
  if (!owner) return change(id);
  controller_->GetJob(
      id,
      [reactor, change = std::move(change)](const absl::StatusOr<v1::Job>& job) {
        if (!job.ok()) return reactor->Finish(ToGrpcStatus(job.status()));
        change(job->id());
      },
      owner);
}

void TrainingServiceImpl::OfOwnSweep(const Caller& caller, const std::string& id, grpc::ServerUnaryReactor* reactor,
                                     std::function<void(const std::string& id)> change) {
  const Owner owner = caller.Scope();
  if (!owner) return change(id);
  controller_->GetSweep(
      id,
      [reactor, change = std::move(change)](const absl::StatusOr<v1::JobSweep>& sweep) {
        if (!sweep.ok()) return reactor->Finish(ToGrpcStatus(sweep.status()));
        change(sweep->id());
      },
      owner);
}

grpc::ServerUnaryReactor* TrainingServiceImpl::CreateToken(grpc::CallbackServerContext* context,
                                                           const v1::CreateTokenRequest* request,
                                                           v1::CreateTokenResponse* response) {
  return Admitted(context, __func__, [&](const Caller&, grpc::ServerUnaryReactor* reactor) {
    if (options_.tokens == nullptr) return reactor->Finish(ToGrpcStatus(NoTokens()));
    options_.tokens->Create(*request, Answer(reactor, response));
  });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::RevokeToken(grpc::CallbackServerContext* context,
                                                           const v1::RevokeTokenRequest* request, v1::Token* response) {
  return Admitted(context, __func__, [&](const Caller&, grpc::ServerUnaryReactor* reactor) {
    if (options_.tokens == nullptr) return reactor->Finish(ToGrpcStatus(NoTokens()));
    options_.tokens->Revoke(request->token_id(), Answer(reactor, response));
  });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::ListTokens(grpc::CallbackServerContext* context,
                                                          const v1::ListTokensRequest*,
                                                          v1::ListTokensResponse* response) {
  return Admitted(context, __func__, [&](const Caller&, grpc::ServerUnaryReactor* reactor) {
    if (options_.tokens == nullptr) return reactor->Finish(ToGrpcStatus(NoTokens()));
    for (v1::Token& token : options_.tokens->List()) *response->add_tokens() = std::move(token);
    reactor->Finish(grpc::Status::OK);
  });
}

}  // namespace ampd
