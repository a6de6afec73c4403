// Runs a small job through the trainer and keeps what it told.
#ifndef AMPD_TESTS_UNIT_ENGINE_TRAIN_TRAINING_RUN_H_
#define AMPD_TESTS_UNIT_ENGINE_TRAIN_TRAINING_RUN_H_

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/core/shape.h"
#include "engine/data/loader.h"
#include "engine/train/trainer.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace ampd::train {

// A folder that is removed with this object.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = ::testing::TempDir() + "/ampd_train_XXXXXX";
    path_ = mkdtemp(pattern.data()) == nullptr ? "" : pattern;
    EXPECT_FALSE(path_.empty());
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  ScratchFolder(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A .npy file, version 1.0. `descr` is NumPy's name of T, e.g. "<f4".
template <typename T>
void WriteNpy(const std::string& path, const char* descr, const Shape& shape, const std::vector<T>& values) {
  std::string header =
      absl::StrCat("{'descr': '", descr, "', 'fortran_order': False, 'shape': (", absl::StrJoin(shape, ","), ",), }");
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += "\n";
  const uint16_t length = static_cast<uint16_t>(header.size());
  std::ofstream out(path, std::ios::binary);
  out.write("\x93NUMPY\x01\x00", 8).write(reinterpret_cast<const char*>(&length), 2) << header;
  out.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(T)));
  EXPECT_TRUE(out.good()) << path;
}

// Normal numbers and even labels below `classes`, the same for a step in every run.
inline data::Batch RandomBatch(const Shape& inputs, int64_t classes, int64_t step) {
  data::Batch batch;
  batch.inputs = Tensor(DType::kF32, inputs);
  batch.labels = Tensor(DType::kI32, {inputs[0]});
  batch.step = step;
  batch.valid = inputs[0];
  std::mt19937 random(static_cast<uint32_t>(step));
  for (int32_t& label : batch.labels.as<int32_t>()) {
    label = static_cast<int32_t>(random() % static_cast<uint64_t>(classes));
  }
  std::normal_distribution<float> normal;
  for (float& x : batch.inputs.as<float>()) x = normal(random);
  return batch;
}

// The parts, in protobuf's text format, merged in order; then resolved.
inline ResolvedJobSpec Spec(const std::vector<std::string>& parts) {
  v1::JobSpec spec;
  for (const std::string& part : parts) {
    EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(part, &spec)) << part;
  }
  auto resolved = ResolveJobSpec(spec);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return *resolved;
}

// A convolution network with everything that has state: batch norm, dropout, momentum.
inline const std::string kConvNet =
    "model { layers { name: 'conv1' conv2d { filters: 6 kernel: 3 stride: 2 activation: RELU } }"
    "        layers { name: 'bn1' batch_norm {} }"
    "        layers { name: 'flat' flatten {} }"
    "        layers { name: 'drop' dropout { rate: 0.1 } }"
    "        layers { name: 'head' dense { units: 10 } }"
    "        loss { softmax_cross_entropy {} } }";
inline const std::string kGlyphs = "data { train { glyphs { samples: 320 } } eval { glyphs { samples: 100 } } }";

class Recorder : public TrainerObserver {
 public:
  absl::Status OnEvent(v1::JobEvent event) override {
    EXPECT_TRUE(event.has_time());
    events.push_back(event);
    return on_event ? on_event(event) : absl::OkStatus();
  }

  std::vector<v1::StepReport> steps() const { return Pick(&v1::JobEvent::has_step, &v1::JobEvent::step); }
  std::vector<v1::OverflowSkip> skips() const {
    return Pick(&v1::JobEvent::has_overflow_skip, &v1::JobEvent::overflow_skip);
  }
  std::vector<v1::LossScaleChange> scale_changes() const {
    return Pick(&v1::JobEvent::has_loss_scale_change, &v1::JobEvent::loss_scale_change);
  }
  std::vector<v1::Evaluation> evaluations() const {
    return Pick(&v1::JobEvent::has_evaluation, &v1::JobEvent::evaluation);
  }
  std::vector<v1::CheckpointSaved> checkpoints() const {
    return Pick(&v1::JobEvent::has_checkpoint, &v1::JobEvent::checkpoint);
  }
  std::vector<v1::Rewound> rewound() const { return Pick(&v1::JobEvent::has_rewound, &v1::JobEvent::rewound); }
  std::vector<v1::LogLine> logs() const { return Pick(&v1::JobEvent::has_log, &v1::JobEvent::log); }

  // Loss of every step, by `report { every_steps: 1 }`.
  std::vector<double> losses() const {
    std::vector<double> losses;
    for (const v1::StepReport& step : steps()) losses.push_back(step.phases(0).loss());
    return losses;
  }
  double MeanLoss(size_t first, size_t count) const {
    const std::vector<double> all = losses();
    double sum = 0;
    for (size_t i = first; i < first + count; ++i) sum += all.at(i);
    return sum / static_cast<double>(count);
  }

  std::vector<v1::JobEvent> events;
  std::function<absl::Status(const v1::JobEvent&)> on_event;

 private:
  template <typename T>
  std::vector<T> Pick(bool (v1::JobEvent::*has)() const, const T& (v1::JobEvent::*get)() const) const {
    std::vector<T> picked;
    for (const v1::JobEvent& event : events) {
      if ((event.*has)()) picked.push_back((event.*get)());
    }
    return picked;
  }
};

inline TrainerOptions Options(const std::string& folder) {
  TrainerOptions options;
  options.checkpoint_dir = folder + "/checkpoints";
  options.data_roots = {folder};
  return options;
}

// A whole attempt. `stop_at` > 0: asks for checkpoint and stop at the report of that step.
inline absl::StatusOr<Outcome> Train(const ResolvedJobSpec& spec, const TrainerOptions& options, Recorder* recorder,
                                     int64_t stop_at = 0) {
  auto trainer = Trainer::Create(spec, options, recorder);
  if (!trainer.ok()) return trainer.status();
  if (stop_at > 0) {
    recorder->on_event = [&trainer, stop_at](const v1::JobEvent& event) {
      if (event.has_step() && event.step().last_step() == stop_at) (*trainer)->Request(Command::kCheckpointAndStop);
      return absl::OkStatus();
    };
  }
  auto outcome = (*trainer)->Run();
  recorder->on_event = nullptr;
  return outcome;
}

}  // namespace ampd::train

#endif  // AMPD_TESTS_UNIT_ENGINE_TRAIN_TRAINING_RUN_H_
