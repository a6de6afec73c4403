// Its place is engine/core/safetensors.h, where datasets read it too.
#ifndef AMPD_ENGINE_TRAIN_SAFETENSORS_H_
#define AMPD_ENGINE_TRAIN_SAFETENSORS_H_

#include "engine/core/safetensors.h"  // IWYU pragma: export

#endif  // AMPD_ENGINE_TRAIN_SAFETENSORS_H_
