// Its place is engine/core/json.h, where datasets read it too.
#ifndef AMPD_ENGINE_TRAIN_JSON_H_
#define AMPD_ENGINE_TRAIN_JSON_H_

#include "engine/core/json.h"  // IWYU pragma: export

#endif  // AMPD_ENGINE_TRAIN_JSON_H_
