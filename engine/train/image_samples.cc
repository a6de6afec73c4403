#include <cmath>

#include "absl/strings/str_format.h"
#include "engine/core/status.h"
#include "engine/train/image_grid.h"
#include "engine/train/png.h"
#include "engine/train/samples.h"

namespace ampd::train {
namespace {

class ImageSampler : public Sampler {
 public:
  explicit ImageSampler(const v1::JobSpec& spec) : seed_(spec.seed()), spec_(spec.report().samples().images()) {}

  absl::StatusOr<Samples> Draw(int64_t step, LoadedModel* model) override {
    // Step 0 in every picture: the noise is drawn in the graph, and stays the same so.
    AMPD_RETURN_IF_ERROR(model->sample->Run({.seed = seed_, .attempted_step = 0}));
    AMPD_ASSIGN_OR_RETURN(const TensorView values, model->sample->Output("samples"));
    AMPD_ASSIGN_OR_RETURN(const TensorView images, runtime::OnHost(model->memory.memory(), values, &staging_));
    const Image grid = ImageGrid(images, {.rows = spec_.rows(),
                                          .columns = spec_.columns(),
                                          .low = static_cast<float>(spec_.low()),
                                          .high = static_cast<float>(spec_.high())});
    AMPD_ASSIGN_OR_RETURN(std::string bytes, EncodePng(grid));
    Samples samples;
    samples.artifacts.push_back({absl::StrFormat("samples-%09d.png", step), "image/png", std::move(bytes)});
    return samples;
  }

 private:
  const uint64_t seed_;
  const v1::ImageSamples spec_;
  AlignedBuffer staging_;
};

}  // namespace

std::unique_ptr<Sampler> MakeImageSampler(const ResolvedJobSpec& spec) {
  return std::make_unique<ImageSampler>(spec.proto());
}

}  // namespace ampd::train
