// Jobs that between them use everything a training keeps in a backend's memory: what tests of other memories and of
// devices train.
#ifndef AMPD_TESTS_UNIT_ENGINE_TRAIN_DEVICE_JOBS_H_
#define AMPD_TESTS_UNIT_ENGINE_TRAIN_DEVICE_JOBS_H_

#include <ostream>
#include <string>
#include <vector>

#include "engine/passes/pad_for_tensor_cores.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {

// Attempted steps of every job.
inline constexpr int64_t kSteps = 12;

struct Job {
  std::string name;
  std::vector<std::string> parts;
  passes::PaddingPolicy padding = {};
  // Events without which the job would not test what it is for: skips that were replayed, and others.
  int replays = 0;
  int diagnostics = 0;
  int fall_backs = 0;
  // Its samples cannot lie on a device.
  bool fed = false;
};

// Has every batch fed by the host.
inline const std::string kFed = "data { device_cache { max_bytes: 0 } }";
// Whether the training that told this said that its samples lie on the device; a failure where it said neither.
bool LieOnDevice(const Recorder& recorder);

// A folder of the whole program's, for what devices measure, so that all its trainings run the same algorithms.
const std::string& AutotuneFolder();

void PrintTo(const Job& job, std::ostream* out);
std::vector<Job> Jobs();
// Of an MLP with dropout and a running average.
std::vector<std::string> MlpParts();

// The files that the job Spelling reads.
void WriteSequences(const std::string& folder);

// What was told, but for times, where the samples lie and what attention runs on.
std::vector<std::string> Told(const Recorder& recorder);
// The checksums of weights, moments, average, statistics, histories, scaler and counters after the last step; "none"
// where there is no checkpoint of it.
std::string ManifestOf(const ScratchFolder& folder);

}  // namespace ampd::train

#endif  // AMPD_TESTS_UNIT_ENGINE_TRAIN_DEVICE_JOBS_H_
