#include "server/service/call_limits.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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
        !limits_->Admit(context_, CallClass::kOthers).ok()) {
      context_->TryCancel();
    }
    methods->Proceed();
  }

 private:
  friend class CallLimits;
  CallLimits* const limits_;
  grpc::ServerContextBase* const context_;
  const bool is_ours_;
  // Guarded by the limits' mutex.
  bool is_admitted_ = false;
  bool is_refused_ = false;
  CallClass class_ = CallClass::kOthers;
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
      refused_(std::move(refused)) {}

std::unique_ptr<ServerInterceptorFactoryInterface> CallLimits::MakeInterceptors() {
  return std::make_unique<Interceptors>(this);
}

bool CallLimits::HasRoom(const std::string& peer, CallClass call_class) const {
  const int64_t free = limits_[Index(call_class)] - under_way_[Index(call_class)];
  const auto connection = connections_.find(peer);
  return free > (connection == connections_.end() ? 0 : connection->second.calls[Index(call_class)]);
}

void CallLimits::Count(Call* call, const std::string& peer, CallClass call_class) {
  call->is_admitted_ = true;
  call->class_ = call_class;
  call->peer_ = peer;
  Connection& connection = connections_[peer];
  ++connection.total;
  ++connection.calls[Index(call_class)];
  ++under_way_[Index(call_class)];
}

absl::Status CallLimits::Admit(grpc::ServerContextBase* context, CallClass call_class) {
  const std::string peer = context->peer();
  bool abandon = false;
  {
    const MutexLock lock(&mutex_);
    const auto call = calls_.find(context);
    if (call == calls_.end()) return absl::InternalError("call limits without their interceptors");
    if (HasRoom(peer, call_class)) {
      Count(call->second, peer, call_class);
      return absl::OkStatus();
    }
    call->second->is_refused_ = true;
    abandon = ++leaving_ > kMaxLeaving;
  }
  if (refused_) refused_(call_class);
  if (abandon) context->TryCancel();
  const std::string name(NameOf(call_class));
  return TryAgain(absl::StrCat("too many calls of this kind are under way (call_limits.", name, ": ",
                               limits_[Index(call_class)], ", at most half of them on one connection); try again"),
                  RetryDelay(call_class));
}

void CallLimits::End(Call* call) {
  const MutexLock lock(&mutex_);
  // A call that came since may have its context where this one's was.
  const auto it = calls_.find(call->context_);
  if (it != calls_.end() && it->second == call) calls_.erase(it);
  if (call->is_refused_) --leaving_;
  if (!call->is_admitted_) return;
  --under_way_[Index(call->class_)];
  const auto connection = connections_.find(call->peer_);
  --connection->second.calls[Index(call->class_)];
  if (--connection->second.total == 0) connections_.erase(connection);
}

int64_t CallLimits::UnderWay(CallClass call_class) const {
  const MutexLock lock(&mutex_);
  return under_way_[Index(call_class)];
}

}  // namespace ampd
