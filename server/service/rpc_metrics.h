// Counts and times every call that a gRPC server answers.
#ifndef AMPD_SERVER_SERVICE_RPC_METRICS_H_
#define AMPD_SERVER_SERVICE_RPC_METRICS_H_

#include <grpcpp/support/server_interceptor.h>

#include <functional>
#include <memory>
#include <string>

namespace ampd {

// No method's name has parentheses.
inline constexpr char kOtherMethods[] = "(other)";

// Told of each call when it has ended, on any of gRPC's threads, several at a time: method without its package
// ("GetJob"; a health check's is "Check"; kOtherMethods of one that is none of auth/permissions.h), code ("NOT_FOUND"),
// and seconds, which are negative for streams.
using RpcListener = std::function<void(const std::string& method, const std::string& code, double seconds)>;

// For grpc::ServerBuilder::experimental().SetInterceptorCreators. A call whose client went away before the answer
// counts as CANCELLED; calls of methods that no service has are seen where something refuses them first.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeRpcMetrics(RpcListener listener);

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_RPC_METRICS_H_
