#include "proto/spec/window_fields.h"

#include <string>

#include "absl/container/flat_hash_set.h"

namespace ampd {

// By name: a schema's descriptors are of a pool of their own.
bool IsWindowField(const google::protobuf::FieldDescriptor& field) {
  static const auto& names = *new absl::flat_hash_set<std::string>{"ampd.v1.Conv2dLayer.kernel",
                                                                   "ampd.v1.Conv2dLayer.stride",
                                                                   "ampd.v1.Conv2dLayer.dilation",
                                                                   "ampd.v1.Conv2dLayer.pads",
                                                                   "ampd.v1.ConvTranspose2dLayer.kernel",
                                                                   "ampd.v1.ConvTranspose2dLayer.stride",
                                                                   "ampd.v1.ConvTranspose2dLayer.pads",
                                                                   "ampd.v1.ConvTranspose2dLayer.output_padding",
                                                                   "ampd.v1.ConvTranspose2dLayer.dilation",
                                                                   "ampd.v1.Pool2dLayer.size",
                                                                   "ampd.v1.Pool2dLayer.stride",
                                                                   "ampd.v1.Pool2dLayer.pads",
                                                                   "ampd.v1.Pool2dLayer.dilation"};
  return names.contains(field.full_name());
}

}  // namespace ampd
