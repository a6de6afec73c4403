// What a training computes with.
#ifndef AMPD_ENGINE_TRAIN_ENVIRONMENT_H_
#define AMPD_ENGINE_TRAIN_ENVIRONMENT_H_

#include <string>
#include <vector>

#include "ampd/v1/event.pb.h"

namespace ampd::train {

// Of a training with these TrainerOptions.devices and threads: libraries, threads, instruction set. Opens no device.
v1::AttemptEnvironment EnvironmentOf(const std::vector<std::string>& devices, int threads);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_ENVIRONMENT_H_
