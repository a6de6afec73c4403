// What this program can train on.
#ifndef AMPD_ENGINE_TRAIN_WORKER_BUILD_H_
#define AMPD_ENGINE_TRAIN_WORKER_BUILD_H_

#include "ampd/v1/worker_link.pb.h"

namespace ampd::train {

v1::WorkerBuild ThisBuild();

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_WORKER_BUILD_H_
