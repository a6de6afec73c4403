// The rows that each op's file defines; op_files.def lists the files.
#ifndef AMPD_ENGINE_OPS_DEFS_H_
#define AMPD_ENGINE_OPS_DEFS_H_

#include <vector>

#include "engine/ops/op_def.h"

namespace ampd::ops {

#define X(name) std::vector<OpDef> name##Defs();
#include "engine/ops/op_files.def"
#undef X

}  // namespace ampd::ops

#endif  // AMPD_ENGINE_OPS_DEFS_H_
