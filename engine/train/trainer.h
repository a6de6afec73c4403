// Trains one job: the step loop over a runtime::Plan, with evaluation, checkpoints and reports.
#ifndef AMPD_ENGINE_TRAIN_TRAINER_H_
#define AMPD_ENGINE_TRAIN_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "ampd/v1/event.pb.h"
#include "ampd/v1/worker_link.pb.h"
#include "proto/spec/resolve.h"

namespace ampd::runtime {
class Backend;
class Collective;
}  // namespace ampd::runtime

namespace ampd::train {

// Who takes the steps of a training on a device that can take them by itself.
enum class StepMode {
  kFastest,      // as kResident or kCaptured, whichever is measured faster
  kResident,     // the device, a small network's steps many in one kernel; another's as kCaptured
  kInterpreted,  // as kResident, without taking dense layers together
  kCaptured,     // the device, each step captured once and replayed
  kEnqueued,     // the device, each kernel launched anew: to look into a step with a debugger or profiler
  kHost,         // the host, which waits for every result
};

// What adds up the gradients of replicas, by rank, whose backends are given.
using MakeCollectivesFunction = std::function<absl::StatusOr<std::vector<std::unique_ptr<runtime::Collective>>>(
    absl::Span<runtime::Backend* const> backends)>;

struct TrainerOptions {
  // Folders beneath which datasets may lie.
  std::vector<std::string> data_roots;
  // Where files named "upload:<sha256>" lie, as <sha256>. Empty: there are none.
  std::string upload_dir;
  // With start_from.job_id: the folder of the checkpoint that the first weights come from; model.safetensors and
  // MANIFEST are read there, and only where the job has no checkpoint of its own.
  std::string start_checkpoint_dir;
  // The job's checkpoints; created when missing. Training resumes from the newest undamaged one; see last_checkpoint.
  std::string checkpoint_dir;
  // Name of the newest checkpoint whose event got out; empty: none did. Newer ones are left aside, so that no event
  // between the two is lost, unless of those up to it all are gone or damaged. nullopt: every checkpoint will do.
  absl::optional<std::string> last_checkpoint;
  // With last_checkpoint: which attempt of the job this is, from 1. A checkpoint that the attempt before left to this
  // one (Trainer::LeaveCheckpoint) and that is newer than last_checkpoint is resumed from. 0: unknown, none is.
  int64_t attempt = 0;
  // With last_checkpoint: the newest checkpoint whose event, of those given to the observer since, got out; empty: none
  // did. Called on the thread that runs Run(), before old checkpoints are removed: whatever `last_checkpoint` will be
  // of the attempt after this one, one up to it stays. Empty: no event gets out while Run() runs.
  std::function<std::string()> published_checkpoint;
  // Where each checkpoint is copied once it is whole; made when missing. What cannot be copied is told by the
  // checkpoint's event and stops nothing. Empty: nowhere.
  std::string mirror_dir;
  // Where files to look at go; made with the first of them. Empty: none are made.
  std::string artifact_dir;
  // An existing folder for what a CUDA device measures of libraries' algorithms and of the ways to launch steps, which
  // the bits of the result depend on: attempts of one job share it. Empty: every attempt measures anew.
  std::string autotune_dir;
  // Threads of computation, >= 1. The bits of the result depend on it.
  int threads = 1;
  // "cpu-..." or the UUID of a CUDA device; that is refused with UNIMPLEMENTED where no CUDA is built in.
  std::string device = "cpu-0";
  // More than one: the training is data parallel, and `device` is not looked at. Each takes an equal part of every
  // batch, whole micro-batches, and of `threads`, one at least; the first also evaluates, and its running statistics
  // (of batch norm, which sees its own part of a batch alone) are those in checkpoints. The draws, the loss and, but
  // for the order of sums, the gradients are those of one device. The host takes the steps. Empty: `device` alone.
  std::vector<std::string> devices;
  // Of several devices: bytes of gradients that are added up in one go, >= 1.
  int64_t gradient_bucket_bytes = int64_t{25} << 20;
  // Of several devices: compares the bits of their masters after every step, not only at checkpoints. INTERNAL, from
  // Run(), where they differ.
  bool compare_replicas = false;
  // Makes what computes, in place of `device`'s backend; empty: MakeBackend(device, threads, autotune_dir). Called once
  // for every model that the training makes: the one it starts with, one that looks at gradients, and one after each
  // fall-back and rollback; of several devices for each, in their order and on the thread that uses it. Its errors are
  // Create's or Run's.
  std::function<absl::StatusOr<std::unique_ptr<runtime::Backend>>()> make_backend;
  // Of several devices: in place of MakeCollectives (engine/train/replicas.h), and called as often as a model is made.
  MakeCollectivesFunction make_collectives;
  // Backends that leave steps to the host pass it over. The results are the same, to the bit, but for kResident's and
  // kInterpreted's, and kFastest's where it is that, whose sums are added up in another order.
  StepMode steps = StepMode::kFastest;
  // Highest attempted step already reported by earlier attempts; resuming below it emits `rewound` first. Of a job with
  // `bench` cells.
  int64_t last_reported_step = 0;
  // What is known of the device; unset where nothing is.
  absl::optional<v1::DeviceModel> device_model;
  // What steps are measured by, seconds: of jobs with `bench` or mode AUTO. Empty: the machine's steady clock.
  std::function<double()> clock;
};

// Receives what happens. Called on the thread that runs Run().
class TrainerObserver {
 public:
  virtual ~TrainerObserver() = default;
  // `event` has `time` and a payload (never a state change); the observer numbers it. An error stops the training and
  // is what Run() returns. May block to apply back-pressure.
  virtual absl::Status OnEvent(v1::JobEvent event) = 0;
};

enum class Command {
  // Write a checkpoint at the next step's end and go on.
  kCheckpoint,
  // Write a checkpoint at the next step's end; Run() returns kStopped.
  kCheckpointAndStop,
};

// kCompleted: to the end of the job, or to where it ends early by itself.
enum class Outcome { kCompleted, kStopped };

// What Trainer::Profile() times.
struct ProfileRequest {
  // 0: nothing.
  int64_t steps = 0;
  // Each kernel of a GPU too, by what its maker records of it (runtime::LapTiming::kKernelActivity).
  bool kernels = false;
};

// Run() is called once, from one thread. The others may be called from any thread at any time.
class Trainer {
 public:
  // Opens the data, builds and plans the model, and loads the newest undamaged checkpoint; of jobs with `bench` or mode
  // AUTO Run() does that. `observer` outlives the trainer. Errors carry a failure class (engine/train/failure.h).
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const ResolvedJobSpec& spec, const TrainerOptions& options,
                                                         TrainerObserver* observer);
  virtual ~Trainer() = default;

  // Trains to the end of the job or to a stop command. The last checkpoint, and the event that tells of it, are
  // written before it returns.
  virtual absl::StatusOr<Outcome> Run() = 0;

  // After Run() returned kCompleted: why the training ended ahead of the steps it was given, for people; else empty.
  virtual std::string end_reason() const { return ""; }

  virtual void Request(Command command) = 0;

  // Has the next request.steps >= 1 steps timed, part by part; a step_profile event tells of it after them, or of those
  // that there were when the training ends or changes its model before. Without effect while a profile is under way,
  // and where steps are not one training's (`bench`).
  virtual void Profile(ProfileRequest request) = 0;

  // After Run() returned kCompleted, and once every event got out: removes the checkpoint that was kept beyond
  // checkpoint.keep_last for an attempt after this one.
  virtual absl::Status DropHeldCheckpoint() { return absl::OkStatus(); }

  // After Run() returned kCompleted or kStopped, and where none of the last events will get out: the attempt after this
  // one resumes from the last checkpoint all the same, and says which steps have no reports.
  virtual absl::Status LeaveCheckpoint() { return absl::OkStatus(); }

  // Attempted steps so far; a rollback from the floor of the loss scale takes it back.
  virtual int64_t step() const = 0;

  // Samples that evaluations took so far, told after each of their batches; never goes back.
  virtual int64_t evaluated_samples() const { return 0; }
};

// What can be said of a job without training it: parameters, memory, per-layer dtypes and shapes. Reads dataset headers
// for the input's shape; data that cannot be read is `data_error`, not an error.
// `upload_dir`: as in TrainerOptions. `device` not null: with a report for this kind of device and these modes
// (v1::PlanRequest.modes). `start_checkpoint_dir`: as in TrainerOptions; whether its weights, or those of
// start_from.path, have the model's names and shapes is looked at, their values are not.
v1::PlanResponse PlanJob(const ResolvedJobSpec& spec, const std::vector<std::string>& data_roots,
                         const std::string& upload_dir = "", const v1::DeviceModel* device = nullptr,
                         const std::vector<v1::PrecisionSpec::Mode>& modes = {},
                         const std::string& start_checkpoint_dir = "");

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_TRAINER_H_
