#include "server/worker/engine_version.h"

#include "ampd_engine_version.h"

namespace ampd {

const char* EngineVersion() { return AMPD_ENGINE_VERSION; }

}  // namespace ampd
