// What the events of a job become in TensorBoard.
#ifndef AMPD_SERVER_TENSORBOARD_SUMMARIES_H_
#define AMPD_SERVER_TENSORBOARD_SUMMARIES_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ampd/v1/event.pb.h"
#include "ampd/v1/job.pb.h"
#include "tensorboard/event.pb.h"

namespace ampd {

// Turns the events of one job, in order, into TensorBoard's. Not thread-safe.
//
//   step reports  at most one in `report_interval` of the events' own time, and the last before anything else:
//                 scalars "train/loss", "train/loss_scale", "train/learning_rate", "train/gradient_norm" and
//                 "train/steps_skipped" ("train/<phase>/loss" and so on for a job of several phases), and
//                 "speed/samples_per_second", "speed/step_seconds", "speed/input_wait_seconds",
//                 "speed/model_flops_utilization"
//   evaluation    scalars "eval/<metric>"
//   diagnostics   histograms "gradient_exponents/<tensor>": of floor(log2 |gradient|), with a tensor's values
//                 that are not 0; scalars "gradients/flushed_unscaled" and "gradients/flushed_scaled"
//   artifact      images of type image/png: "<name without its number and ending>"
//   text_sample   text "samples"
//   rewound       what stood from there on is withdrawn
// The first event gives the text "job", the spec as JSON.
class Summaries {
 public:
  // Reads an artifact of the job.
  using ReadArtifact = std::function<absl::StatusOr<std::string>(const std::string& name)>;

  Summaries(v1::JobSpec spec, ReadArtifact read_artifact, absl::Duration report_interval = absl::Seconds(1))
      : spec_(std::move(spec)), read_artifact_(std::move(read_artifact)), report_interval_(report_interval) {}

  std::vector<tensorboard::Event> Of(const v1::JobEvent& event);

 private:
  void AddHeldReport(std::vector<tensorboard::Event>* events);

  const v1::JobSpec spec_;
  const ReadArtifact read_artifact_;
  const absl::Duration report_interval_;
  absl::Time last_report_ = absl::InfinitePast();
  // A step report that came too soon.
  v1::JobEvent held_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_TENSORBOARD_SUMMARIES_H_
