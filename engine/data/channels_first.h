// Images whose channels come first, as PyTorch has them, where ours come last.
#ifndef AMPD_ENGINE_DATA_CHANNELS_FIRST_H_
#define AMPD_ENGINE_DATA_CHANNELS_FIRST_H_

#include "absl/status/status.h"
#include "engine/data/dataset.h"

namespace ampd::data {

// Whether a sample's shape, read as [height, width, channels], is more likely one of [channels, height, width]: the
// first extent is as many as channels are (1, 3 or 4), and neither of the others is.
bool LooksChannelsFirst(const DatasetInfo& info);

// INVALID_ARGUMENT that says so, where it does, and what is to be done. `why` samples are taken for images: "node
// conv".
absl::Status CheckChannelsLast(const DatasetInfo& info, absl::string_view why);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_CHANNELS_FIRST_H_
