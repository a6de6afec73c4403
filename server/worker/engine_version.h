// The version of this program and the revision that it was built of.
#ifndef AMPD_SERVER_WORKER_ENGINE_VERSION_H_
#define AMPD_SERVER_WORKER_ENGINE_VERSION_H_

namespace ampd {

// As v1::AttemptEnvironment.engine_version.
const char* EngineVersion();

}  // namespace ampd

#endif  // AMPD_SERVER_WORKER_ENGINE_VERSION_H_
