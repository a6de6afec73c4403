// The fields that say how a window lies over an image.
#ifndef AMPD_PROTO_SPEC_WINDOW_FIELDS_H_
#define AMPD_PROTO_SPEC_WINDOW_FIELDS_H_

#include "google/protobuf/descriptor.h"

namespace ampd {

// Whether `field` is a list of numbers, [height, width] or each side, of which one means all alike: `kernel`, `stride`,
// `dilation`, `pads`, `output_padding` and `size` of the layers that have them. A job file may give it as a number.
bool IsWindowField(const google::protobuf::FieldDescriptor& field);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_WINDOW_FIELDS_H_
