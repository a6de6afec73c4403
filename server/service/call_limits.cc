#include "server/service/call_limits.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/message.h"
#include "server/service/try_again.h"

namespace ampd {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerInterceptorFactoryInterface;
using grpc::experimental::ServerRpcInfo;

constexpr char kService[] = "/ampd.v1.";
constexpr int64_t kOthersLimit = 1000;
// Refused calls whose answers nobody has read.
constexpr int64_t kMaxLeaving = 500;

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
    case CallClass::kOthers:
      break;
  }
  return absl::Seconds(5);
}

// An answer that is serialised lives on until the call is over, ten times as large: this frees what it holds. All
// messages of our services are generated ones.
void Empty(void* message) {
  auto* parsed = static_cast<google::protobuf::Message*>(message);
  const std::unique_ptr<google::protobuf::Message> other(parsed->New());
  parsed->GetReflection()->Swap(parsed, other.get());
}

size_t Index(CallClass call_class) { return static_cast<size_t>(call_class); }

}  // namespace

absl::string_view NameOf(CallClass call_class) {
  static constexpr std::array<const char*, kCallClasses> kNames = {"reads",    "writes",    "planning",
                                                                   "watchers", "transfers", "others"};
  return kNames[Index(call_class)];
}

// From the call's arrival to the end of all that gRPC keeps of it.
class CallLimits::Call final : public Interceptor {
 public:
  Call(CallLimits* limits, ServerRpcInfo* info)
      : limits_(limits), context_(info->server_context()), is_ours_(absl::StartsWith(info->method(), kService)) {
    const MutexLock lock(&limits_->mutex_);
    limits_->calls_[context_] = this;
  }
  ~Call() override { limits_->End(this); }

  void Intercept(InterceptorBatchMethods* methods) override {
    // gRPC's own services refuse nothing.
    if (!is_ours_ && methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA) &&
        !limits_->Admit(context_, CallClass::kOthers, 0).ok()) {
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
    if (parsed != nullptr) Empty(const_cast<void*>(parsed));
    if (!limits_->BeginAnswer(this, bytes)) context_->TryCancel();
  }

  CallLimits* const limits_;
  grpc::ServerContextBase* const context_;
  const bool is_ours_;
  // Guarded by the limits' mutex.
  bool is_admitted_ = false;
  bool is_refused_ = false;
  CallClass class_ = CallClass::kOthers;
  int64_t request_bytes_ = 0;
  int64_t answer_bytes_ = 0;
  std::string peer_;
};

class CallLimits::Interceptors final : public ServerInterceptorFactoryInterface {
 public:
  explicit Interceptors(CallLimits* limits) : limits_(limits) {}
  Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override { return new Call(limits_, info); }

 private:
  CallLimits* const limits_;
};

CallLimits::CallLimits(const v1::ServerConfig::CallLimits& limits, Listener refused)
    : limits_{limits.reads(), limits.writes(), limits.planning(), limits.watchers(), limits.transfers(), kOthersLimit},
      request_bytes_limit_(limits.request_bytes()),
      answer_bytes_limit_(limits.answer_bytes()),
      refused_(std::move(refused)) {}

std::unique_ptr<ServerInterceptorFactoryInterface> CallLimits::MakeInterceptors() {
  return std::make_unique<Interceptors>(this);
}

CallLimits::Taken CallLimits::TakenBy(const std::string& peer) const {
  const auto connection = connections_.find(peer);
  return connection == connections_.end() ? Taken() : connection->second;
}

std::string CallLimits::Shortage(const std::string& peer, CallClass call_class, int64_t request_bytes) const {
  const size_t index = Index(call_class);
  const Taken own = TakenBy(peer);
  if (limits_[index] - all_.calls[index] <= own.calls[index]) {
    return absl::StrCat("too many calls of this kind are under way (call_limits.", NameOf(call_class), ": ",
                        limits_[index], ", at most half of them on one connection)");
  }
  if (request_bytes_limit_ - all_.request_bytes - request_bytes < own.request_bytes + request_bytes) {
    return absl::StrCat("requests under way take too much memory, and this one ", request_bytes,
                        " bytes (call_limits.request_bytes: ", request_bytes_limit_,
                        ", at most half of them on one connection)");
  }
  return "";
}

void CallLimits::Count(Call* call, const std::string& peer, CallClass call_class, int64_t request_bytes) {
  call->is_admitted_ = true;
  call->class_ = call_class;
  call->request_bytes_ = request_bytes;
  call->peer_ = peer;
  for (Taken* taken : {&connections_[peer], &all_}) {
    ++taken->total;
    ++taken->calls[Index(call_class)];
    taken->request_bytes += request_bytes;
  }
}

absl::Status CallLimits::Admit(grpc::ServerContextBase* context, CallClass call_class, int64_t request_bytes) {
  const std::string peer = context->peer();
  const bool never = request_bytes > request_bytes_limit_ / 2;
  std::string shortage;
  bool abandon = false;
  {
    const MutexLock lock(&mutex_);
    const auto call = calls_.find(context);
    if (call == calls_.end()) return absl::InternalError("call limits without their interceptors");
    shortage = Shortage(peer, call_class, request_bytes);
    if (shortage.empty()) {
      Count(call->second, peer, call_class, request_bytes);
      return absl::OkStatus();
    }
    call->second->is_refused_ = true;
    abandon = ++leaving_ > kMaxLeaving;
  }
  if (refused_) refused_(call_class);
  if (abandon) context->TryCancel();
  if (never) return absl::ResourceExhaustedError(shortage);
  return TryAgain(absl::StrCat(shortage, "; try again"), RetryDelay(call_class));
}

bool CallLimits::BeginAnswer(Call* call, int64_t bytes) {
  {
    const MutexLock lock(&mutex_);
    if (!call->is_admitted_) return true;
    Taken& own = connections_[call->peer_];
    if (answer_bytes_limit_ - all_.answer_bytes - bytes >= own.answer_bytes + bytes) {
      call->answer_bytes_ += bytes;
      own.answer_bytes += bytes;
      all_.answer_bytes += bytes;
      return true;
    }
  }
  if (refused_) refused_(call->class_);
  return false;
}

void CallLimits::EndAnswer(Call* call) {
  const MutexLock lock(&mutex_);
  if (!call->is_admitted_) return;
  connections_[call->peer_].answer_bytes -= call->answer_bytes_;
  all_.answer_bytes -= call->answer_bytes_;
  call->answer_bytes_ = 0;
}

void CallLimits::End(Call* call) {
  EndAnswer(call);
  const MutexLock lock(&mutex_);
  // A call that came since may have its context where this one's was.
  const auto it = calls_.find(call->context_);
  if (it != calls_.end() && it->second == call) calls_.erase(it);
  if (call->is_refused_) --leaving_;
  if (!call->is_admitted_) return;
  const auto connection = connections_.find(call->peer_);
  for (Taken* taken : {&connection->second, &all_}) {
    --taken->total;
    --taken->calls[Index(call->class_)];
    taken->request_bytes -= call->request_bytes_;
  }
  if (connection->second.total == 0) connections_.erase(connection);
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
