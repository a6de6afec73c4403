// What report.samples shows.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/spec/names.h"
#include "proto/spec/resolve_internal.h"

namespace ampd {
namespace {

constexpr int64_t kMaxSteps = int64_t{1} << 40;
constexpr int64_t kMaxSide = 100;
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

}  // namespace

void ResolveSamples(const v1::ModelSpec& model, v1::SampleSpec* samples, Violations* violations) {
  if (!samples->has_every_steps()) samples->set_every_steps(500);
  violations->CheckInteger("report.samples.every_steps", samples->every_steps(), 1, kMaxSteps);
  if (samples->kind_case() == v1::SampleSpec::KIND_NOT_SET) {
    violations->Add("report.samples", "required: images, or text");
  }
  if (samples->has_images()) ResolveImages(model, samples->mutable_images(), violations);
}

}  // namespace ampd
