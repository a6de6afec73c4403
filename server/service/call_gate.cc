#include "server/service/call_gate.h"

#include <google/protobuf/message.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security_constants.h>

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/core/status.h"
#include "server/auth/certificates.h"
#include "server/service/call_peer.h"

namespace ampd {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerInterceptorFactoryInterface;
using grpc::experimental::ServerRpcInfo;

// A ULID.
constexpr size_t kTokenIdBytes = 26;
// Between two looks at who has expired.
constexpr std::chrono::seconds kExpiryPause{1};
constexpr char kServicePath[] = "/ampd.v1.TrainingService/";

absl::string_view ToView(grpc::string_ref text) { return {text.data(), text.size()}; }

// The text field at `path`, "token.id" for example; empty where it is not set.
std::string TextAt(const google::protobuf::Message* message, absl::string_view path) {
  const std::vector<std::string> names = absl::StrSplit(path, '.');
  for (size_t i = 0; i < names.size(); ++i) {
    const google::protobuf::FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(names[i]);
    if (field == nullptr || field->is_repeated()) return "";
    if (i + 1 < names.size()) {
      message = &message->GetReflection()->GetMessage(*message, field);
    } else if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_STRING) {
      return message->GetReflection()->GetString(*message, field);
    }
  }
  return "";
}

bool ValidatesOnly(const google::protobuf::Message& message) {
  const google::protobuf::FieldDescriptor* field = message.GetDescriptor()->FindFieldByName("validate_only");
  return field != nullptr && message.GetReflection()->GetBool(message, field);
}

// The secret of the call; nullopt: none was sent.
absl::StatusOr<std::optional<absl::string_view>> SecretOf(const grpc::ServerContextBase& context) {
  const auto [first, last] = context.client_metadata().equal_range("authorization");
  if (first == last) return std::optional<absl::string_view>();
  if (std::next(first) != last) return absl::UnauthenticatedError("several authorizations in one call");
  absl::string_view value = ToView(first->second);
  constexpr absl::string_view kScheme = "bearer ";
  if (!absl::StartsWithIgnoreCase(value, kScheme)) {
    return absl::UnauthenticatedError("the authorization is not \"Bearer\" and a token");
  }
  value.remove_prefix(kScheme.size());
  return std::optional<absl::string_view>(value);
}

// Of a certificate that the handshake verified; empty: none.
std::string CertificateProperty(const grpc::ServerContextBase& context, const char* name) {
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  if (auth == nullptr || !auth->IsPeerAuthenticated()) return "";
  const std::vector<grpc::string_ref> values = auth->FindPropertyValues(name);
  return values.size() == 1 ? std::string(ToView(values[0])) : "";
}

absl::Status Expired(const std::string& token_id, absl::Time time) {
  return absl::UnauthenticatedError(absl::StrCat(token_id.empty() ? "the certificate" : "token ", token_id,
                                                 " expired at ",
                                                 absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone())));
}

void EndCall(grpc_call* call, const absl::Status& status) {
  grpc_call_cancel_with_status(call, static_cast<grpc_status_code>(status.code()),
                               std::string(status.message()).c_str(), nullptr);
}

}  // namespace

CallGate::CallGate(Options options) : options_(options) {
  if (options_.tokens != nullptr) expiry_ = std::thread([this] { WatchExpiry(); });
}

CallGate::~CallGate() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  if (expiry_.joinable()) expiry_.join();
}

absl::StatusOr<Caller> CallGate::Identify(const grpc::ServerContextBase& context) const {
  if (options_.tokens == nullptr) return Anybody();
  AMPD_ASSIGN_OR_RETURN(const std::optional<absl::string_view> secret, SecretOf(context));
  if (secret) return Identify(*secret);
  if (options_.certificate_role != v1::ROLE_UNSPECIFIED) {
    const std::string name = CertificateProperty(context, GRPC_X509_CN_PROPERTY_NAME);
    if (!IsUserName(name)) {
      return absl::UnauthenticatedError("no token, and the certificate's common name is no user's");
    }
    const absl::Time end = EndOfCertificate(CertificateProperty(context, GRPC_X509_PEM_CERT_PROPERTY_NAME));
    if (end <= options_.clock->Now()) return Expired("", end);
    return Caller{name, options_.certificate_role, "", end};
  }
  return absl::UnauthenticatedError("this server needs a token (ampctl --token-file FILE, or AMPD_TOKEN)");
}

absl::StatusOr<Caller> CallGate::Identify(absl::string_view secret) const {
  return options_.tokens == nullptr ? Anybody() : options_.tokens->Authenticate(secret);
}

absl::StatusOr<Caller> CallGate::Admit(const grpc::ServerContextBase& context, absl::string_view method) const {
  AMPD_ASSIGN_OR_RETURN(Caller caller, Identify(context));
  AMPD_RETURN_IF_ERROR(CheckRole(caller, absl::StrCat(kServicePath, method)));
  return caller;
}

void CallGate::Register(const Caller& caller, grpc_call* call, bool is_stream) {
  const absl::Time ends = is_stream ? caller.expires : absl::InfiniteFuture();
  grpc_call_ref(call);
  const MutexLock lock(&mutex_);
  calls_.emplace(caller.token_id, Admitted{call, ends});
  if (ends == absl::InfiniteFuture()) return;
  ++expiring_;
  changed_.NotifyAll();
}

void CallGate::Unregister(const std::string& token_id, grpc_call* call) {
  {
    const MutexLock lock(&mutex_);
    const auto [first, last] = calls_.equal_range(token_id);
    for (auto it = first; it != last; ++it) {
      if (it->second.call != call) continue;
      if (it->second.ends != absl::InfiniteFuture()) --expiring_;
      calls_.erase(it);
      break;
    }
  }
  grpc_call_unref(call);
}

void CallGate::EndCalls(const std::string& token_id) {
  std::vector<grpc_call*> calls;
  {
    const MutexLock lock(&mutex_);
    const auto [first, last] = calls_.equal_range(token_id);
    for (auto it = first; it != last; ++it) {
      grpc_call_ref(it->second.call);
      calls.push_back(it->second.call);
    }
  }
  // Not under the lock: a call that ends comes back to Unregister().
  for (grpc_call* call : calls) {
    EndCall(call, absl::UnauthenticatedError(absl::StrCat("token ", token_id, " was revoked")));
    grpc_call_unref(call);
  }
}

void CallGate::EndExpired() {
  std::vector<std::pair<std::string, Admitted>> expired;
  {
    const MutexLock lock(&mutex_);
    const absl::Time now = options_.clock->Now();
    for (const auto& one : calls_) {
      if (one.second.ends > now) continue;
      grpc_call_ref(one.second.call);
      expired.push_back(one);
    }
  }
  for (const auto& [token_id, admitted] : expired) {
    EndCall(admitted.call, Expired(token_id, admitted.ends));
    grpc_call_unref(admitted.call);
  }
}

void CallGate::WatchExpiry() {
  MutexLock lock(&mutex_);
  while (!stopping_) {
    if (expiring_ == 0) {
      changed_.Wait(&mutex_);
      continue;
    }
    const CondVar::Deadline next = std::chrono::steady_clock::now() + kExpiryPause;
    while (!stopping_ && changed_.WaitUntil(&mutex_, next)) {
    }
    lock.Unlock();
    EndExpired();
    lock.Lock();
  }
}

// One call; gone with it.
class CallGate::Call : public Interceptor {
 public:
  Call(CallGate* gate, ServerRpcInfo* info, const MethodRule* rule) : gate_(gate), info_(info), rule_(rule) {}

  ~Call() override {
    if (call_ != nullptr) gate_->Unregister(record_.caller.token_id, call_);
    // One that nobody answered: its client went away before that.
    WriteDown(absl::StatusCode::kCancelled);
  }

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) Begin();
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE)) {
      Received(static_cast<const google::protobuf::Message*>(methods->GetRecvMessage()));
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE)) {
      Sends(static_cast<const google::protobuf::Message*>(methods->GetSendMessage()));
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      // Before the answer: what a client was told is written down, however this process ends.
      WriteDown(static_cast<absl::StatusCode>(methods->GetSendStatus().error_code()));
    }
    methods->Proceed();
  }

 private:
  void WriteDown(absl::StatusCode code) {
    const bool wanted = gate_->options_.audit != nullptr && rule_ != nullptr && rule_->changes && !validates_only_;
    if (!wanted || std::exchange(written_down_, true)) return;
    record_.time = gate_->options_.clock->Now();
    record_.method = absl::StrCat(info_->method()).substr(absl::string_view(info_->method()).rfind('/') + 1);
    record_.code = absl::StatusCodeToString(code);
    // Not of those that are refused: nobody makes the disk busy with them.
    record_.durable = rule_->role == v1::ADMIN && record_.caller.role == v1::ADMIN;
    gate_->options_.audit->Write(record_);
  }

  void Begin() {
    grpc::ServerContextBase& context = *info_->server_context();
    record_.peer = CallPeer(context);
    absl::StatusOr<Caller> caller = gate_->Identify(context);
    if (caller.ok()) record_.caller = *caller;
    // Handlers of ours refuse by themselves, and that in order.
    if (!absl::StartsWith(info_->method(), kServicePath)) {
      const absl::Status status = caller.ok() ? CheckRole(*caller, info_->method()) : caller.status();
      if (!status.ok()) return EndCall(context.c_call(), status);
    }
    if (record_.caller.token_id.empty() && record_.caller.expires == absl::InfiniteFuture()) return;
    call_ = context.c_call();
    gate_->Register(record_.caller, call_, info_->type() != ServerRpcInfo::Type::UNARY);
  }

  void Received(const google::protobuf::Message* message) {
    if (message == nullptr || rule_ == nullptr || received_) return;
    received_ = true;
    validates_only_ = ValidatesOnly(*message);
    if (rule_->resource != nullptr) record_.resource = TextAt(message, rule_->resource);
    // It may be a secret without its prefix.
    if (rule_->resource == absl::string_view("token_id") && record_.resource.size() > kTokenIdBytes)
      record_.resource = "...";
  }

  void Sends(const google::protobuf::Message* message) {
    if (message != nullptr && rule_ != nullptr && rule_->made != nullptr) record_.made = TextAt(message, rule_->made);
  }

  CallGate* const gate_;
  ServerRpcInfo* const info_;
  const MethodRule* const rule_;
  AuditRecord record_;
  bool received_ = false;
  bool validates_only_ = false;
  bool written_down_ = false;
  // Set once registered.
  grpc_call* call_ = nullptr;
};

class CallGate::Factory : public ServerInterceptorFactoryInterface {
 public:
  explicit Factory(CallGate* gate) : gate_(gate) {}

  Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    const MethodRule* rule = FindMethodRule(info->method());
    const bool open = rule != nullptr && rule->role == v1::ROLE_UNSPECIFIED;
    const bool short_read = rule != nullptr && !rule->changes && info->type() == ServerRpcInfo::Type::UNARY;
    const bool ours = absl::StartsWith(info->method(), kServicePath);
    return open || (ours && short_read) ? nullptr : new Call(gate_, info, rule);
  }

 private:
  CallGate* const gate_;
};

std::unique_ptr<ServerInterceptorFactoryInterface> CallGate::MakeInterceptors() {
  return std::make_unique<Factory>(this);
}

}  // namespace ampd
