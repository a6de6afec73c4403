// What this program can train on, and what it asks about devices that are not here.
#ifndef AMPD_ENGINE_TRAIN_WORKER_BUILD_H_
#define AMPD_ENGINE_TRAIN_WORKER_BUILD_H_

#include <string>

#include "ampd/v1/worker_link.pb.h"

namespace ampd::train {

v1::WorkerBuild ThisBuild();

// The folder of the library whose plans PlanJob asks for GPUs, which opens files of it then; empty: there is none.
std::string PlanLibraryFolder();

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_WORKER_BUILD_H_
