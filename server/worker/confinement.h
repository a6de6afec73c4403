// What ampd-worker takes from itself before it reads anything that a stranger may have written. Nothing of it can be
// taken back. Each is for a process with one thread.
#ifndef AMPD_SERVER_WORKER_CONFINEMENT_H_
#define AMPD_SERVER_WORKER_CONFINEMENT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/repeated_field.h"
#include "server/launch/landlock.h"

namespace ampd {

// No program that this one runs has more privileges than it (no_new_privs), it dumps no core, its files are its user's
// alone, and the kernel ends it first when memory runs out.
absl::Status Confine();

// Becomes the user that `run_as` names (RunAsText), with its groups and without any capability, and makes sure that
// there is no way back.
absl::Status RunAs(absl::string_view run_as);

// For a process that answers one question: no capability but to read files, no network, no programs and processes, and
// no writing but of new files in `folder`, where that is not empty. As far as the kernel is able to; what it lacks the
// daemon has told in its log. `landlock_version`: use no more of Landlock than this version has.
absl::Status EnterSandbox(const std::string& folder, int landlock_version = LandlockVersion());

// The folders that `data_roots` stand for, as requests name them.
std::vector<std::string> DataFolders(const google::protobuf::RepeatedPtrField<std::string>& data_roots);

// Thereafter: reading only beneath `paths`, and of what programs need of the system.
absl::Status ReadOnlyBeneath(const std::vector<std::string>& paths);

}  // namespace ampd

#endif  // AMPD_SERVER_WORKER_CONFINEMENT_H_
