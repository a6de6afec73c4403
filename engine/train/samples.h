// What a model makes, to look at: pictures or text, every few steps.
#ifndef AMPD_ENGINE_TRAIN_SAMPLES_H_
#define AMPD_ENGINE_TRAIN_SAMPLES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "ampd/v1/event.pb.h"
#include "engine/train/artifacts.h"
#include "engine/train/planned_model.h"
#include "proto/spec/resolve.h"

namespace ampd::train {

struct Samples {
  std::vector<Artifact> artifacts;
  // What is no file; without `time`.
  std::vector<v1::JobEvent> events;
};

// Not thread-safe.
class Sampler {
 public:
  virtual ~Sampler() = default;
  // A function of the model's parameters and running statistics, the job's seed and `step`, the attempted steps so far:
  // a resumed training draws what the uninterrupted one would have. The model stays as it is, but for the arena that
  // its plans share. Called between steps, on the thread that trains, with optimizer.ema.samples while the average is
  // in the parameters' place. Errors end the training.
  virtual absl::StatusOr<Samples> Draw(int64_t step, LoadedModel* model) = 0;
};

// What report.samples asks for; null without it. `plan`, which has room for it (PlannedModel::sample), outlives the
// sampler.
absl::StatusOr<std::unique_ptr<Sampler>> MakeSampler(const ResolvedJobSpec& spec, const PlannedModel& plan);

// Of report.samples.text: a text_sample event. `plan` has a sample plan of text.
std::unique_ptr<Sampler> MakeTextSampler(const ResolvedJobSpec& spec, const PlannedModel& plan);

// Of report.samples.images: an artifact "samples-<step, nine digits>.png".
std::unique_ptr<Sampler> MakeImageSampler(const ResolvedJobSpec& spec);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_SAMPLES_H_
