#include "engine/data/channels_first.h"

#include "absl/strings/str_cat.h"

namespace ampd::data {

bool LooksChannelsFirst(const DatasetInfo& info) {
  constexpr int64_t kMostChannels = 4;
  if (!info.is_image()) return false;
  const int64_t first = info.input_shape[0], second = info.input_shape[1], third = info.input_shape[2];
  if (second <= kMostChannels || third <= kMostChannels) return false;
  // Series, and rows of sensors, are stored so as well; images of one or four channels are mostly square.
  return first == 3 || ((first == 1 || first == kMostChannels) && second == third);
}

absl::Status CheckChannelsLast(const DatasetInfo& info, absl::string_view why) {
  if (!LooksChannelsFirst(info)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("samples of ", info.name, " are ", ShapeString(info.input_shape),
                   ", which looks like [channels, height, width]; ", why,
                   " takes them for images, which are [height, width, channels]: store x.transpose(0, 2, 3, 1)"));
}

}  // namespace ampd::data
