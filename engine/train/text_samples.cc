// Of report.samples.text.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/core/rng.h"
#include "engine/core/status.h"
#include "engine/core/tensor.h"
#include "engine/train/samples.h"
#include "engine/train/text_sampling.h"
#include "proto/spec/utf8.h"

namespace ampd::train {
namespace {

constexpr int64_t kBytes = 256;

class TextSampler : public Sampler {
 public:
  // The sample plan reads `length` bytes.
  TextSampler(const v1::TextSamples& spec, uint64_t seed, int64_t length)
      : spec_(spec), seed_(seed), window_(DType::kF32, {1, length}) {}

  absl::StatusOr<Samples> Draw(int64_t step, LoadedModel* model) override {
    std::string bytes = spec_.prompt();
    RngSequence random(seed_, "report.samples.text", static_cast<uint64_t>(step));
    for (int64_t i = 0; i < spec_.length(); ++i) {
      AMPD_ASSIGN_OR_RETURN(const int next, Next(bytes, random.NextUniform(), model));
      // The text ends where the network's answer is no number.
      if (next < 0) break;
      bytes.push_back(static_cast<char>(next));
    }
    Samples samples;
    samples.events.emplace_back();
    v1::TextSample* sample = samples.events.back().mutable_text_sample();
    sample->set_step(step);
    sample->set_prompt(spec_.prompt());
    sample->set_text(ValidUtf8(absl::string_view(bytes).substr(spec_.prompt().size())));
    return samples;
  }

 private:
  absl::StatusOr<int> Next(const std::string& bytes, float uniform, LoadedModel* model) {
    const absl::Span<float> window = window_.as<float>();
    const size_t shown = std::min(bytes.size(), window.size());
    std::fill(window.begin(), window.end(), 0.0f);
    for (size_t i = 0; i < shown; ++i) window[i] = static_cast<uint8_t>(bytes[bytes.size() - shown + i]);
    AMPD_RETURN_IF_ERROR(model->sample->BindInput("x", window_.view().data));
    AMPD_RETURN_IF_ERROR(model->sample->Run(runtime::StepState()));
    AMPD_ASSIGN_OR_RETURN(const TensorView output, model->sample->Output("logits"));
    AMPD_ASSIGN_OR_RETURN(const TensorView logits, runtime::OnHost(model->memory.memory(), output, &staging_));
    const float* last = logits.as<float>() + static_cast<int64_t>(shown - 1) * logits.shape.back();
    return SampleIndex({last, static_cast<size_t>(kBytes)}, spec_.temperature(), spec_.top_k(), uniform);
  }

  const v1::TextSamples spec_;
  const uint64_t seed_;
  Tensor window_;
  AlignedBuffer staging_;
};

}  // namespace

std::unique_ptr<Sampler> MakeTextSampler(const ResolvedJobSpec& spec, const PlannedModel& plan) {
  const Shape& window = plan.sample.inputs[0].type.shape;
  return std::make_unique<TextSampler>(spec.proto().report().samples().text(), spec.proto().seed(), window[1]);
}

}  // namespace ampd::train
