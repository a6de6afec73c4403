// What fp16 would make of a step's gradients: how many it flushes to zero, with and without a loss scale, and how large
// a scale it bears.
#ifndef AMPD_ENGINE_TRAIN_GRADIENT_DIAGNOSTICS_H_
#define AMPD_ENGINE_TRAIN_GRADIENT_DIAGNOSTICS_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ampd/v1/event.pb.h"
#include "engine/train/micro_batches.h"
#include "engine/train/planned_model.h"
#include "proto/spec/resolve.h"

namespace ampd::train {

// The scale that is looked at where a job scales no loss: where FP16 jobs start.
inline constexpr float kFp16FirstScale = 65536;

// Figures of one tensor's values, gathered in parts. Thread-compatible.
class Fp16Figures {
 public:
  // > 0. Values are looked at as they are, and multiplied by it (exactly, before the one rounding to fp16).
  explicit Fp16Figures(float scale) : scale_(scale) {}

  void Add(absl::Span<const float> values);
  // Everything but names; as the message says.
  v1::TensorDiagnostics Result() const;

 private:
  // Exponents of finite fp32 numbers, subnormals included: from -149 to 127.
  static constexpr int kFirstExponent = -149;
  static constexpr int kExponents = 127 + 149 + 1;

  double scale_;
  std::array<int64_t, kExponents> counts_ = {};
  int64_t zeros_ = 0;
  int64_t non_finite_ = 0;
  int64_t flushed_unscaled_ = 0;
  int64_t flushed_scaled_ = 0;
  int64_t overflowed_scaled_ = 0;
  float max_magnitude_ = 0;
};

// `spec`'s model in fp32 beside the one that trains: the job's own kernels may have rounded what is looked for. It
// holds masters, gradients and activations of its own, no moments. Not movable; not thread-safe.
class GradientDiagnostics {
 public:
  // The plan alone, for what it takes. Errors as PlanModel's.
  static absl::StatusOr<std::unique_ptr<PlannedModel>> Plan(const ResolvedJobSpec& spec,
                                                            const models::SampleInfo& sample,
                                                            std::unique_ptr<runtime::Backend> backend, int threads);
  // Errors as Plan's and LoadedModel::Create's.
  static absl::StatusOr<std::unique_ptr<GradientDiagnostics>> Create(const ResolvedJobSpec& spec,
                                                                     const models::SampleInfo& sample,
                                                                     std::unique_ptr<runtime::Backend> backend,
                                                                     int threads);
  GradientDiagnostics(const GradientDiagnostics&) = delete;
  GradientDiagnostics& operator=(const GradientDiagnostics&) = delete;

  // Runs `batch` forward and backward, as phase `phase` does, with the masters and states of `memory`, which it only
  // reads. The tensors are those of the backward pass that an FP16 job of this spec would hold in fp16. `scale` as in
  // Fp16Figures; `state` is the step's own, so that dropout is the same. Step and phase of the message are unset.
  absl::StatusOr<v1::GradientDiagnostics> Run(const data::Batch& batch, const runtime::StepState& state, float scale,
                                              runtime::ModelMemory* memory, size_t phase = 0);

 private:
  struct Tensor {
    std::string layer;
    bool of_parameter = false;
    Fp16Figures figures;
  };

  GradientDiagnostics(const ResolvedJobSpec& spec, std::unique_ptr<PlannedModel> plan,
                      std::unique_ptr<LoadedModel> model);
  absl::Status Look(const std::map<std::string, bool>& watched_names, const runtime::PlanStep& step,
                    absl::Span<const TensorView> outputs, float scale,
                    std::vector<std::pair<std::string, Tensor>>* tensors);

  std::unique_ptr<PlannedModel> plan_;
  std::unique_ptr<LoadedModel> model_;
  // By phase; names of the values that fp16 would hold, and whether a parameter's gradient sums them.
  std::vector<MicroBatches> micro_batches_;
  std::vector<std::map<std::string, bool>> watched_;
  AlignedBuffer staging_;
};

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_GRADIENT_DIAGNOSTICS_H_
