// TrainingService's calls about tokens, and who may make any of its calls.
#include <utility>

#include "server/service/answer.h"
#include "server/service/training_service.h"

namespace ampd {
namespace {

absl::Status NoTokens() {
  return absl::FailedPreconditionError("this server asks for no tokens (ampd --auth, auth.tokens)");
}

// Goes on with the id that was found.
Controller::Done<std::string> WithId(grpc::ServerUnaryReactor* reactor, std::function<void(const std::string&)> next) {
  return [reactor, next = std::move(next)](const absl::StatusOr<std::string>& id) {
    if (!id.ok()) return reactor->Finish(ToGrpcStatus(id.status()));
    next(*id);
  };
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
  controller_->FindJobId(id, WithId(reactor, std::move(change)), owner);
}

void TrainingServiceImpl::OfOwnSweep(const Caller& caller, const std::string& id, grpc::ServerUnaryReactor* reactor,
                                     std::function<void(const std::string& id)> change) {
  const Owner owner = caller.Scope();
  if (!owner) return change(id);
  controller_->FindSweepId(id, WithId(reactor, std::move(change)), owner);
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
