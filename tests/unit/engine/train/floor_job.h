// A job whose gradients overflow at the smallest loss scale, in some steps of its first epoch.
#ifndef AMPD_TESTS_UNIT_ENGINE_TRAIN_FLOOR_JOB_H_
#define AMPD_TESTS_UNIT_ENGINE_TRAIN_FLOOR_JOB_H_

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/data/loader.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {

inline constexpr double kFloor = 64;
inline constexpr int64_t kSamples = 256, kBatchSize = 32, kStepsAnEpoch = kSamples / kBatchSize;
// Of the first epoch, from 1: the steps whose gradients overflow fp16 at any scale from kFloor on, two above it.
inline constexpr int64_t kFirstBad = 4, kLastBad = 6;

// A regression with three targets so far off that the loss is finite, but its gradient, 2 * 60000 / 32 * scale, is not.
inline void WriteFloorData(const std::string& folder) {
  constexpr int kFeatures = 16;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> x, y;
  for (int64_t n = 0; n < kSamples; ++n) {
    float sum = 0;
    for (int f = 0; f < kFeatures; ++f) {
      x.push_back(normal(random));
      sum += x.back() / 4;
    }
    y.push_back(sum);
  }
  const std::vector<int64_t> order = data::EpochOrder(kSamples, 0, 1);
  for (int64_t step = kFirstBad; step <= kLastBad; ++step) y[order[(step - 1) * kBatchSize + 5]] = 60000;
  WriteNpy(folder + "/x.npy", "<f4", {kSamples, kFeatures}, x);
  WriteNpy(folder + "/y.npy", "<f4", {kSamples}, y);
}

inline const std::string kFloorTraining =
    "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } } report { every_steps: 1 }"
    "train { batch_size: 32 epochs: 5 }"
    "optimizer { adamw { learning_rate: 0.01 } schedule { cosine {} } clip_global_norm: 1 ema {} }";
// With everything that has state.
inline const std::string kFloorNetwork =
    "model { layers { dense { units: 8 activation: RELU } } layers { batch_norm {} } layers { dropout { rate: 0.1 } }"
    "        layers { dense { units: 1 } } loss { mean_squared_error {} } } train { micro_batch_size: 16 }" +
    kFloorTraining;

inline std::string FloorScale(const std::string& policy, double init = 4 * kFloor, double min = kFloor) {
  return absl::StrCat("precision { mode: FP16 loss_scale { init: ", init, " min: ", min,
                      " growth_interval: 1000 on_floor: ", policy, " } }");
}

}  // namespace ampd::train

#endif  // AMPD_TESTS_UNIT_ENGINE_TRAIN_FLOOR_JOB_H_
