// Has `ampd-worker --export FILE` write a trained model in another form, in a process of its own.
#ifndef AMPD_SERVER_LAUNCH_EXPORT_PROCESS_H_
#define AMPD_SERVER_LAUNCH_EXPORT_PROCESS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "ampd/v1/worker_link.pb.h"
#include "server/launch/worker_exchange.h"

namespace ampd {

// The limits of production, for a checkpoint of `checkpoint_bytes`: minutes, and memory in proportion, which is left
// unlimited under sanitizers.
ExchangeLimits ExportLimits(int64_t checkpoint_bytes);

// Runs `worker --export path` and waits for it; `path` is new. Thread safe; blocks up to limits.timeout. The worker's
// own errors, and otherwise AskWorker's. After an error what `path` holds is undefined.
absl::Status RunExportProcess(const std::string& worker, const v1::ExportRequest& request, const std::string& path,
                              const ExchangeLimits& limits);

}  // namespace ampd

#endif  // AMPD_SERVER_LAUNCH_EXPORT_PROCESS_H_
