// What report.samples shows.
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/limits.h"
#include "proto/spec/names.h"
#include "proto/spec/resolve_internal.h"
#include "proto/spec/token_ids.h"

namespace ampd {
namespace {

constexpr int64_t kMaxSide = 100;
constexpr size_t kMaxPromptBytes = 4096;
constexpr int64_t kMaxLength = 1 << 16;
const Interval kValue = {.low = -1e6, .high = 1e6};

void ResolveImages(const v1::ModelSpec& model, v1::ImageSamples* images, Violations* violations) {
  const std::string path = "report.samples.images";
  std::vector<std::string> names;
  bool known = false;
  for (const v1::Network& network : model.networks()) {
    names.push_back(network.name());
    known = known || network.name() == images->network();
  }
  if (names.empty()) {
    violations->Add(path, "needs model.networks");
  } else if (!known) {
    violations->Add(path + ".network", absl::StrCat("no network is named ", Quoted(images->network()),
                                                    DidYouMean(images->network(), names)));
  }
  if (!images->has_rows()) images->set_rows(10);
  if (!images->has_columns()) images->set_columns(8);
  if (!images->has_low()) images->set_low(-1);
  if (!images->has_high()) images->set_high(1);
  violations->CheckInteger(path + ".rows", images->rows(), 1, kMaxSide);
  violations->CheckInteger(path + ".columns", images->columns(), 1, kMaxSide);
  violations->CheckReal(path + ".low", images->low(), kValue);
  violations->CheckReal(path + ".high", images->high(), kValue);
  // As floats, between which shades are measured.
  if (!(static_cast<float>(images->low()) < static_cast<float>(images->high()))) {
    violations->Add(path + ".high", absl::StrCat("must be above low, ", images->low(), ", is ", images->high()));
  }
}

// A prompt of token ids; one out of the vocabulary has no row in the embedding.
void CheckIds(const v1::TokensDataset& tokens, const std::string& prompt, Violations* violations) {
  // A vocabulary that is none has been reported.
  if (tokens.vocabulary() < 1) return;
  const auto ids = ParseTokenIds(prompt, tokens.vocabulary());
  if (!ids.ok()) violations->Add("report.samples.text.prompt", std::string(ids.status().message()));
}

void ResolveText(const v1::JobSpec& spec, v1::TextSamples* text, Violations* violations) {
  const std::string path = "report.samples.text";
  const v1::DatasetSpec& train = spec.data().train();
  if (!train.has_text() && !train.has_tokens()) violations->Add(path, "needs data.train.text or data.train.tokens");
  if (!spec.model().networks().empty() || spec.model().has_onnx()) violations->Add(path, "needs model.layers");
  if (!text->has_prompt()) text->set_prompt(train.has_tokens() ? "0" : "\n");
  if (!text->has_length()) text->set_length(200);
  if (!text->has_temperature()) text->set_temperature(0.8);
  // Of ids, white space is nothing.
  const bool blank = train.has_tokens() && absl::StripAsciiWhitespace(text->prompt()).empty();
  if (text->prompt().empty() || blank) {
    violations->Add(path + ".prompt", "must not be empty: something has to be continued");
  }
  if (text->prompt().size() > kMaxPromptBytes) {
    violations->Add(path + ".prompt",
                    absl::StrCat("must be at most ", kMaxPromptBytes, " bytes, is ", text->prompt().size()));
  } else if (train.has_tokens()) {
    CheckIds(train.tokens(), text->prompt(), violations);
  }
  violations->CheckInteger(path + ".length", text->length(), 1, kMaxLength);
  violations->CheckReal(path + ".temperature", text->temperature(), {.low = 0, .high = 1e6});
  if (text->has_top_k()) violations->CheckInteger(path + ".top_k", text->top_k(), 1, kMaxLength);
}

}  // namespace

void ResolveSamples(const v1::JobSpec& spec, v1::SampleSpec* samples, Violations* violations) {
  if (!samples->has_every_steps()) samples->set_every_steps(500);
  violations->CheckInteger("report.samples.every_steps", samples->every_steps(), 1, kMaxSteps);
  if (samples->kind_case() == v1::SampleSpec::KIND_NOT_SET) {
    violations->Add("report.samples", "required: images, or text");
  }
  if (samples->has_text()) ResolveText(spec, samples->mutable_text(), violations);
  if (samples->has_images()) ResolveImages(spec.model(), samples->mutable_images(), violations);
}

}  // namespace ampd
