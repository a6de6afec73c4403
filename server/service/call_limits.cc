#include "server/service/call_limits.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/auth/peer.h"
#include "server/service/call_peer.h"
#include "server/service/try_again.h"

namespace ampd {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerInterceptorFactoryInterface;
using grpc::experimental::ServerRpcInfo;

constexpr char kService[] = "/ampd.v1.";
constexpr char kCheck[] = "/grpc.health.v1.Health/Check";
constexpr char kHealthWatch[] = "/grpc.health.v1.Health/Watch";
constexpr int64_t kOthersLimit = 1000;
// On a connection, which costs more than they do.
constexpr int64_t kMaxChecks = 16;
// Refused calls whose answers nobody has read.
constexpr int64_t kMaxLeaving = 500;
// What a client may take for each that it leaves free.
constexpr int64_t kClientShare = 3;
constexpr char kShares[] = ", at most half of it on one connection, and three quarters for one user or address)";

// About the time in which slots of the class become free.
absl::Duration RetryDelay(CallClass call_class) {
  switch (call_class) {
    case CallClass::kReads:
    case CallClass::kWrites:
      return absl::Milliseconds(200);
    case CallClass::kPlanning:
    case CallClass::kTransfers:
      return absl::Seconds(2);
    case CallClass::kWatchers:
    case CallClass::kChecks:
    case CallClass::kHealthWatchers:
    case CallClass::kOthers:
      break;
  }
  return absl::Seconds(5);
}

size_t Index(CallClass call_class) { return static_cast<size_t>(call_class); }

// Of gRPC's own services.
CallClass ClassOf(absl::string_view method) {
  if (method == kCheck) return CallClass::kChecks;
  return method == kHealthWatch ? CallClass::kHealthWatchers : CallClass::kOthers;
}

bool IsOfThisMachine(absl::string_view address) {
  return address == "unix:" || address == "ipv6:::1" || absl::StartsWith(address, "ipv4:127.");
}

// Whether a connection that takes `own`, of a client that takes `client`, leaves enough: `free`.
bool IsFair(int64_t own, int64_t client, int64_t free) { return own <= free && client <= kClientShare * free; }

template <typename Shares>
typename Shares::mapped_type TakenBy(const Shares& shares, const std::string& who) {
  const auto found = shares.find(who);
  return found == shares.end() ? typename Shares::mapped_type() : found->second;
}

}  // namespace

std::string ClientOf(absl::string_view user, absl::string_view peer) {
  if (!user.empty()) return absl::StrCat("user ", user);
  std::string address = PeerAddress(peer);
  return IsOfThisMachine(address) ? "" : address;
}

// All messages of our services are generated ones.
void Empty(google::protobuf::Message* message) {
  const std::unique_ptr<google::protobuf::Message> other(message->New());
  message->GetReflection()->Swap(message, other.get());
}

absl::string_view NameOf(CallClass call_class) {
  static constexpr std::array<const char*, kCallClasses> kNames = {"reads",     "writes", "planning",        "watchers",
                                                                   "transfers", "checks", "health_watchers", "others"};
  return kNames[Index(call_class)];
}

// From the call's arrival to the end of all that gRPC keeps of it.
class CallLimits::Call final : public Interceptor {
 public:
  Call(CallLimits* limits, ServerRpcInfo* info)
      : limits_(limits),
        context_(info->server_context()),
        is_ours_(absl::StartsWith(info->method(), kService)),
        class_(ClassOf(info->method())) {
    const MutexLock lock(&limits_->mutex_);
    limits_->calls_[context_] = this;
  }
  ~Call() override { limits_->End(this); }

  void Intercept(InterceptorBatchMethods* methods) override {
    // gRPC's own services refuse nothing.
    if (!is_ours_ && methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA) &&
        !limits_->AdmitOf(PeerAddress(CallPeer(*context_)), context_, class_, 0).ok()) {
      context_->TryCancel();
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE)) Answers(methods);
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_SEND_MESSAGE)) limits_->EndAnswer(this);
    methods->Proceed();
  }

 private:
  friend class CallLimits;

  void Answers(InterceptorBatchMethods* methods) {
    // What is streamed is the handler's own.
    const bool is_unary = methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS);
    const void* parsed = is_ours_ && is_unary ? methods->GetSendMessage() : nullptr;
    const auto bytes = static_cast<int64_t>(methods->GetSerializedSendMessage()->Length());
    // It would live on until the call is over, ten times as large as what is sent.
    if (parsed != nullptr) Empty(static_cast<google::protobuf::Message*>(const_cast<void*>(parsed)));
    if (!limits_->BeginAnswer(this, bytes)) context_->TryCancel();
  }

  CallLimits* const limits_;
  grpc::ServerContextBase* const context_;
  const bool is_ours_;
  // Guarded by the limits' mutex.
  bool is_admitted_ = false;
  bool is_refused_ = false;
  CallClass class_;
  int64_t request_bytes_ = 0;
  int64_t answer_bytes_ = 0;
  // As gRPC writes the peer; and ClientOf().
  std::string connection_;
  std::string client_;
};

class CallLimits::Interceptors final : public ServerInterceptorFactoryInterface {
 public:
  explicit Interceptors(CallLimits* limits) : limits_(limits) {}
  Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override { return new Call(limits_, info); }

 private:
  CallLimits* const limits_;
};

CallLimits::CallLimits(const v1::ServerConfig::CallLimits& limits, Listener refused)
    : limits_{limits.reads(),     limits.writes(), limits.planning(), limits.watchers(),
              limits.transfers(), INT64_MAX,       kOthersLimit,      kOthersLimit},
      request_bytes_limit_(limits.request_bytes()),
      answer_bytes_limit_(limits.answer_bytes()),
      refused_(std::move(refused)) {}

std::unique_ptr<ServerInterceptorFactoryInterface> CallLimits::MakeInterceptors() {
  return std::make_unique<Interceptors>(this);
}

std::string CallLimits::Shortage(const Call& call, CallClass call_class, int64_t request_bytes) const {
  const size_t index = Index(call_class);
  const Taken own = TakenBy(connections_, call.connection_), client = TakenBy(clients_, call.client_);
  if (call_class == CallClass::kChecks) return own.calls[index] < kMaxChecks ? "" : "too many health checks";
  // With this call.
  const int64_t free = limits_[index] - all_.calls[index] - 1;
  if (!IsFair(own.calls[index], client.calls[index], free)) {
    return absl::StrCat("too many calls of this kind are under way (call_limits.", NameOf(call_class), ": ",
                        limits_[index], kShares);
  }
  const int64_t free_bytes = request_bytes_limit_ - all_.request_bytes - request_bytes;
  if (!IsFair(own.request_bytes + request_bytes, client.request_bytes + request_bytes, free_bytes)) {
    return absl::StrCat("requests under way take too much memory, and this one ", request_bytes,
                        " bytes (call_limits.request_bytes: ", request_bytes_limit_, kShares);
  }
  return "";
}

void CallLimits::Change(const Call& call, absl::FunctionRef<void(Taken&)> change) {
  const auto change_of = [&](Shares& shares, const std::string& who) {
    const auto taken = shares.try_emplace(who).first;
    change(taken->second);
    if (taken->second.total == 0) shares.erase(taken);
  };
  change(all_);
  change_of(connections_, call.connection_);
  if (!call.client_.empty()) change_of(clients_, call.client_);
}

void CallLimits::Count(Call* call, CallClass call_class, int64_t request_bytes) {
  call->is_admitted_ = true;
  call->class_ = call_class;
  call->request_bytes_ = request_bytes;
  Change(*call, [&](Taken& taken) {
    ++taken.total;
    ++taken.calls[Index(call_class)];
    taken.request_bytes += request_bytes;
  });
}

bool CallLimits::Leave(Call* call) {
  call->is_refused_ = true;
  const bool may_stay = IsFair(TakenBy(connections_, call->connection_).leaving,
                               TakenBy(clients_, call->client_).leaving, kMaxLeaving - all_.leaving - 1);
  Change(*call, [](Taken& taken) {
    ++taken.total;
    ++taken.leaving;
  });
  return may_stay;
}

absl::Status CallLimits::Admit(grpc::ServerContextBase* context, CallClass call_class, int64_t request_bytes,
                               absl::string_view user) {
  return AdmitOf(ClientOf(user, CallPeer(*context)), context, call_class, request_bytes);
}

absl::Status CallLimits::AdmitOf(const std::string& client, grpc::ServerContextBase* context, CallClass call_class,
                                 int64_t request_bytes) {
  const bool never = request_bytes > request_bytes_limit_ / 2;
  std::string shortage;
  bool may_stay = true;
  {
    const MutexLock lock(&mutex_);
    const auto call = calls_.find(context);
    if (call == calls_.end()) return absl::InternalError("call limits without their interceptors");
    call->second->connection_ = CallPeer(*context);
    call->second->client_ = client;
    shortage = Shortage(*call->second, call_class, request_bytes);
    if (shortage.empty()) {
      Count(call->second, call_class, request_bytes);
      return absl::OkStatus();
    }
    may_stay = Leave(call->second);
  }
  if (refused_) refused_(call_class);
  if (!may_stay) context->TryCancel();
  if (never) return absl::ResourceExhaustedError(shortage);
  return TryAgain(absl::StrCat(shortage, "; try again"), RetryDelay(call_class));
}

void CallLimits::Refuse(grpc::ServerContextBase* context) {
  const std::string peer = CallPeer(*context), client = ClientOf("", peer);
  {
    const MutexLock lock(&mutex_);
    const auto call = calls_.find(context);
    if (call == calls_.end()) return;
    call->second->connection_ = peer;
    call->second->client_ = client;
    if (Leave(call->second)) return;
  }
  context->TryCancel();
}

bool CallLimits::BeginAnswer(Call* call, int64_t bytes) {
  {
    const MutexLock lock(&mutex_);
    if (!call->is_admitted_) return true;
    if (IsFair(TakenBy(connections_, call->connection_).answer_bytes + bytes,
               TakenBy(clients_, call->client_).answer_bytes + bytes,
               answer_bytes_limit_ - all_.answer_bytes - bytes)) {
      call->answer_bytes_ += bytes;
      Change(*call, [bytes](Taken& taken) { taken.answer_bytes += bytes; });
      return true;
    }
  }
  if (refused_) refused_(call->class_);
  return false;
}

void CallLimits::EndAnswer(Call* call) {
  const MutexLock lock(&mutex_);
  const int64_t bytes = std::exchange(call->answer_bytes_, 0);
  if (call->is_admitted_) Change(*call, [bytes](Taken& taken) { taken.answer_bytes -= bytes; });
}

void CallLimits::End(Call* call) {
  EndAnswer(call);
  const MutexLock lock(&mutex_);
  // A call that came since may have its context where this one's was.
  const auto it = calls_.find(call->context_);
  if (it != calls_.end() && it->second == call) calls_.erase(it);
  if (!call->is_admitted_ && !call->is_refused_) return;
  Change(*call, [call](Taken& taken) {
    --taken.total;
    if (call->is_refused_) --taken.leaving;
    if (!call->is_admitted_) return;
    --taken.calls[Index(call->class_)];
    taken.request_bytes -= call->request_bytes_;
  });
}

int64_t CallLimits::UnderWay(CallClass call_class) const {
  const MutexLock lock(&mutex_);
  return all_.calls[Index(call_class)];
}

int64_t CallLimits::RequestBytes() const {
  const MutexLock lock(&mutex_);
  return all_.request_bytes;
}

int64_t CallLimits::AnswerBytes() const {
  const MutexLock lock(&mutex_);
  return all_.answer_bytes;
}

}  // namespace ampd
