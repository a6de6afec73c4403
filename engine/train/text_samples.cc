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
#include "proto/spec/token_ids.h"
#include "proto/spec/utf8.h"

namespace ampd::train {
namespace {

// How the tokens that the network reads stand for text: as bytes of it, or, of data.train.tokens, as their numbers.
class Encoding {
 public:
  explicit Encoding(const v1::DatasetSpec& train)
      : as_ids_(train.has_tokens()), vocabulary_(as_ids_ ? train.tokens().vocabulary() : 256) {}

  int64_t vocabulary() const { return vocabulary_; }

  absl::StatusOr<std::vector<int32_t>> TokensOf(const std::string& prompt) const {
    if (as_ids_) return ParseTokenIds(prompt, vocabulary_);
    std::vector<int32_t> tokens;
    for (const char byte : prompt) tokens.push_back(static_cast<uint8_t>(byte));
    return tokens;
  }

  // What follows a prompt. Ids begin with a space, so that the prompt and they are one text.
  std::string TextOf(absl::Span<const int32_t> tokens) const {
    std::string text;
    for (const int32_t token : tokens) {
      if (as_ids_) {
        absl::StrAppend(&text, " ", token);
      } else {
        text.push_back(static_cast<char>(token));
      }
    }
    return ValidUtf8(text);
  }

 private:
  const bool as_ids_;
  const int64_t vocabulary_;
};

class TextSampler : public Sampler {
 public:
  // The sample plan reads `length` tokens.
  TextSampler(const v1::TextSamples& spec, const Encoding& encoding, uint64_t seed, int64_t length)
      : spec_(spec), encoding_(encoding), seed_(seed), window_(DType::kF32, {1, length}) {}

  absl::StatusOr<Samples> Draw(int64_t step, LoadedModel* model) override {
    AMPD_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, encoding_.TokensOf(spec_.prompt()));
    const size_t given = tokens.size();
    RngSequence random(seed_, "report.samples.text", static_cast<uint64_t>(step));
    for (int64_t i = 0; i < spec_.length(); ++i) {
      AMPD_ASSIGN_OR_RETURN(const int next, Next(tokens, random.NextUniform(), model));
      // The text ends where the network's answer is no number.
      if (next < 0) break;
      tokens.push_back(next);
    }
    Samples samples;
    samples.events.emplace_back();
    v1::TextSample* sample = samples.events.back().mutable_text_sample();
    sample->set_step(step);
    sample->set_prompt(spec_.prompt());
    sample->set_text(encoding_.TextOf(absl::MakeConstSpan(tokens).subspan(given)));
    return samples;
  }

 private:
  absl::StatusOr<int> Next(const std::vector<int32_t>& tokens, float uniform, LoadedModel* model) {
    const absl::Span<float> window = window_.as<float>();
    const size_t shown = std::min(tokens.size(), window.size());
    std::fill(window.begin(), window.end(), 0.0f);
    for (size_t i = 0; i < shown; ++i) window[i] = static_cast<float>(tokens[tokens.size() - shown + i]);
    AMPD_RETURN_IF_ERROR(model->sample->BindInput("x", window_.view().data));
    AMPD_RETURN_IF_ERROR(model->sample->Run(runtime::StepState()));
    AMPD_ASSIGN_OR_RETURN(const TensorView output, model->sample->Output("logits"));
    AMPD_ASSIGN_OR_RETURN(const TensorView logits, runtime::OnHost(model->memory.memory(), output, &staging_));
    const float* last = logits.as<float>() + static_cast<int64_t>(shown - 1) * logits.shape.back();
    return SampleIndex({last, static_cast<size_t>(encoding_.vocabulary())}, spec_.temperature(), spec_.top_k(),
                       uniform);
  }

  const v1::TextSamples spec_;
  const Encoding encoding_;
  const uint64_t seed_;
  Tensor window_;
  AlignedBuffer staging_;
};

}  // namespace

std::unique_ptr<Sampler> MakeTextSampler(const ResolvedJobSpec& spec, const PlannedModel& plan) {
  const Shape& window = plan.sample.inputs[0].type.shape;
  const v1::JobSpec& job = spec.proto();
  return std::make_unique<TextSampler>(job.report().samples().text(), Encoding(job.data().train()), job.seed(),
                                       window[1]);
}

}  // namespace ampd::train
