#include "server/service/rpc_metrics.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/auth/permissions.h"

namespace ampd {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerInterceptorFactoryInterface;
using grpc::experimental::ServerRpcInfo;

// Whoever reaches the port chooses the path, before the call is refused: each name would be a series for ever.
std::string MethodOf(const char* path) {
  if (FindMethodRule(path) == nullptr) return kOtherMethods;
  const std::string whole = path;
  return whole.substr(whole.rfind('/') + 1);
}

// Of one call; gone with it.
class RpcTimer : public Interceptor {
 public:
  RpcTimer(const ServerRpcInfo& info, const RpcListener* listener)
      : listener_(listener),
        method_(MethodOf(info.method())),
        stream_(info.type() != ServerRpcInfo::Type::UNARY),
        start_(absl::GetCurrentTimeNanos()) {}

  ~RpcTimer() override {
    const double seconds = static_cast<double>(absl::GetCurrentTimeNanos() - start_) * 1e-9;
    (*listener_)(method_, absl::StatusCodeToString(code_), stream_ ? -1 : seconds);
  }

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      code_ = static_cast<absl::StatusCode>(methods->GetSendStatus().error_code());
    }
    methods->Proceed();
  }

 private:
  const RpcListener* const listener_;
  const std::string method_;
  const bool stream_;
  const int64_t start_;
  absl::StatusCode code_ = absl::StatusCode::kCancelled;
};

class RpcMetrics : public ServerInterceptorFactoryInterface {
 public:
  explicit RpcMetrics(RpcListener listener) : listener_(std::move(listener)) {}
  Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override { return new RpcTimer(*info, &listener_); }

 private:
  const RpcListener listener_;
};

}  // namespace

std::unique_ptr<ServerInterceptorFactoryInterface> MakeRpcMetrics(RpcListener listener) {
  return std::make_unique<RpcMetrics>(std::move(listener));
}

}  // namespace ampd
