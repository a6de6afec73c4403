// Presets: families of models that stand for layers and a loss, or for networks and phases. Internal to proto/spec; a
// family is a function in proto/spec/presets/.
#ifndef AMPD_PROTO_SPEC_PRESETS_H_
#define AMPD_PROTO_SPEC_PRESETS_H_

#include <cstdint>

#include "absl/types/optional.h"
#include "ampd/v1/job.pb.h"
#include "proto/spec/violations.h"

namespace ampd {

// Puts what model.preset stands for in its place, says so in model.made_from and clears it, so that a spec without a
// preset is left as it is. A loss beside the preset is kept instead of the preset's. Adds violations such as
// "model.preset.resnet.depth", and leaves the preset where there are any: the rest of the spec then says nothing.
void ExpandPreset(v1::JobSpec* spec, Violations* violations);

// The images that a model of preset acgan draws, and looks at beside the data's.
struct AcganImages {
  int64_t size = 0;
  int64_t channels = 0;
};

// nullopt: the model was not made from that preset.
absl::optional<AcganImages> AcganImagesOf(const v1::ModelSpec& model);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_PRESETS_H_
