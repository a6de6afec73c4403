// TrainingService within its limits.
#ifndef AMPD_SERVER_SERVICE_LIMITED_SERVICE_H_
#define AMPD_SERVER_SERVICE_LIMITED_SERVICE_H_

#include <memory>

#include "server/service/call_limits.h"
#include "server/service/training_service.h"

namespace ampd {

// As TrainingServiceImpl, but a call for which `limits` has no room is refused before anything is done for it. Callers
// whom the gate (options.gate) does not admit take none of that room. `limits` outlives the server, which has its
// interceptors.
std::unique_ptr<TrainingServiceImpl> MakeLimitedTrainingService(CallLimits* limits,
                                                                TrainingServiceImpl::Options options,
                                                                Submitter::Planner planner, Controller* controller,
                                                                EventLog* log);

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_LIMITED_SERVICE_H_
