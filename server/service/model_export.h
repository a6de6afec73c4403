// What TrainingService.ExportModel does: a checkpoint's weights in another form.
#ifndef AMPD_SERVER_SERVICE_MODEL_EXPORT_H_
#define AMPD_SERVER_SERVICE_MODEL_EXPORT_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/job.pb.h"
#include "ampd/v1/training_service.pb.h"
#include "ampd/v1/worker_link.pb.h"
#include "server/files/file_sharing.h"
#include "server/launch/stop_event.h"
#include "server/service/checkpoint_files.h"
#include "server/service/departure.h"

namespace ampd {

// Thread safe.
class ModelExporter {
 public:
  struct Options {
    // As ControllerOptions'.
    std::string checkpoint_root;
    std::string mirror_root;
    // Where files are written until they are sent; made when it is missing. What lies there is removed at the start.
    std::string scratch_dir;
    std::vector<std::string> data_roots;
    // Where uploaded files lie; may be empty.
    std::string upload_dir;
    FileSharing workers;
  };
  // Writes the model to a new file; RunExportProcess in the daemon. `checkpoint_bytes`: of the whole checkpoint. `left`
  // is set once nobody waits any more.
  using Runner = std::function<absl::Status(const v1::ExportRequest& request, const std::string& path,
                                            int64_t checkpoint_bytes, const StopEvent& left)>;

  ModelExporter(Options options, Runner runner);

  // The model as the one file of an opened checkpoint, "model.onnx" or "model.safetensors"; nothing of it is left in
  // any folder. Blocks while the runner does, which hears of it when the caller goes away; `caller` is nobody else's to
  // follow. Of a checkpoint that is damaged or gone it is made of its copy in the mirror, and has from_mirror.
  // INVALID_ARGUMENT with field violations ("dtype"), OpenAnyCopy's errors, or the runner's.
  absl::StatusOr<OpenCheckpoint> Export(const v1::Job& job, const v1::ExportModelRequest& request,
                                        Departure& caller) const;

 private:
  const Options options_;
  const Runner runner_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_MODEL_EXPORT_H_
