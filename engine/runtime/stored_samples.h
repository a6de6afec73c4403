// A training's samples as a device may keep them: what is stored of each, and how what a step is fed follows from it.
#ifndef AMPD_ENGINE_RUNTIME_STORED_SAMPLES_H_
#define AMPD_ENGINE_RUNTIME_STORED_SAMPLES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/core/augmentation.h"

namespace ampd::runtime {

// Plain values, but for `read`, which borrows.
struct StoredSamples {
  // Samples, >= 1.
  int64_t size = 0;

  // The plans' input that is fed what is made of a sample's stored values: these, as many, moved as `augmentation` says
  // (which leaves those that are no images as they are), and then each of channel c, the last dimension, as
  // Normalized(value, mean[c], std[c]).
  std::string input;
  int64_t values = 0;
  // They are bytes rather than f32.
  bool bytes = false;
  ImageAugmentation augmentation;
  // A channel each, or one for all.
  std::vector<double> mean;
  std::vector<double> std;
  // Of the draws of a step.
  uint64_t seed = 0;

  // The plans' input that is fed a sample's target: so many words of four bytes as they are stored; or, where one_hot
  // is not 0, so many f32, of which the one that the stored label counts to is 1 and the others 0.
  std::string target;
  int64_t target_words = 0;
  int64_t one_hot = 0;

  // What they may take of the device, bytes; below 0: a share of what is free there, which the device chooses.
  int64_t max_bytes = -1;

  // Writes `count` samples from `first` on, one after the other: the values, and the stored words of the targets.
  // Called while the loop is made. DATA_LOSS where a sample cannot be read.
  std::function<absl::Status(int64_t first, int64_t count, void* values, void* targets)> read;

  // Of one sample.
  int64_t value_bytes() const { return values * (bytes ? 1 : static_cast<int64_t>(sizeof(float))); }
  int64_t target_bytes() const { return target_words * static_cast<int64_t>(sizeof(uint32_t)); }
  // Of all.
  int64_t total_bytes() const { return size * (value_bytes() + target_bytes()); }
};

}  // namespace ampd::runtime

#endif  // AMPD_ENGINE_RUNTIME_STORED_SAMPLES_H_
