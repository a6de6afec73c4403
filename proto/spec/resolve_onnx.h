// model.onnx, a part of ResolveJobSpec.
#ifndef AMPD_PROTO_SPEC_RESOLVE_ONNX_H_
#define AMPD_PROTO_SPEC_RESOLVE_ONNX_H_

#include "ampd/v1/model.pb.h"
#include "proto/spec/violations.h"

namespace ampd {

// Fills the defaults of `model`, which has onnx, and adds what is wrong.
void ResolveOnnx(v1::ModelSpec* model, Violations* violations);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_RESOLVE_ONNX_H_
