// Jobs' folders in a mirror that workers of another user write in. The mirror, another machine's disk perhaps, may fail
// or hang, so a thread that nothing waits for makes the folders and gives them away.
#ifndef AMPD_SERVER_LAUNCH_MIRROR_FOLDERS_H_
#define AMPD_SERVER_LAUNCH_MIRROR_FOLDERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/launch/worker_account.h"

namespace ampd {

// Thread safe; no function waits for the mirror.
class MirrorFolders {
 public:
  // Makes the folder of the job, whose name is then on disk, and gives it to the workers' user, with all that is in it;
  // of an empty id it makes the mirror alone. Either way the user may go through the mirror. What should be known
  // though it went well is added to `notes`. May take for ever. On the thread, also after the end of the object.
  using Give = std::function<absl::Status(const std::string& job_id, std::vector<std::string>* notes)>;

  struct Options {
    Give give;
    // Told of what fails, once per cause until nothing does, of the end of that, of a mirror that does not answer, and
    // of notes, once each. Must not block. Not called once the object is gone.
    std::function<void(const std::string&)> log;
    // After so long what failed is tried again.
    absl::Duration period = absl::Minutes(1);
    // A mirror that has not answered for so long counts as one that hangs.
    absl::Duration patience = absl::Minutes(1);
  };

  // Asks for the mirror alone.
  explicit MirrorFolders(Options options);
  // A thread that hangs stays until the mirror answers, and does no more then.
  ~MirrorFolders();
  MirrorFolders(const MirrorFolders&) = delete;
  MirrorFolders& operator=(const MirrorFolders&) = delete;

  // Has the job's folder given, and what failed before tried again, now.
  void Ask(const std::string& job_id, uint32_t attempt);
  // The attempt has ended: its folder is no longer tried, unless another attempt has asked.
  void Forget(const std::string& job_id, uint32_t attempt);

 private:
  struct State;
  static void Run(State& state);

  // The thread's as well.
  const std::shared_ptr<State> state_;
};

// MirrorFolders::Give in `root`.
MirrorFolders::Give GiveIn(std::string root, const WorkerAccount& account);

}  // namespace ampd

#endif  // AMPD_SERVER_LAUNCH_MIRROR_FOLDERS_H_
