// Every metric that the daemon exports. A new one is added here, to AllMetrics, and fed in metrics.cc.
#ifndef AMPD_SERVER_METRICS_DEFINITIONS_H_
#define AMPD_SERVER_METRICS_DEFINITIONS_H_

#include <vector>

#include "server/metrics/metrics.h"

namespace ampd {

struct Metric {
  enum Type { kGauge, kCounter, kHistogram };
  Type type;
  const char* name;
  const char* help;
  // Names with ", " between them; every series has all of them. None is "job" or "instance": Prometheus gives every
  // series these, of the target that it scraped, and renames a series' own to "exported_job" unless told otherwise.
  const char* labels = "";
};

// Of the daemon.
inline constexpr Metric kBuildInfo = {Metric::kGauge, "ampd_build_info", "Always 1. Label version: of the daemon.",
                                      "version"};
inline constexpr Metric kUptime = {Metric::kGauge, "ampd_uptime_seconds", "Time since the daemon started."};
inline constexpr Metric kJobs = {Metric::kGauge, "ampd_jobs", "Jobs in the store, by label state.", "state"};
inline constexpr Metric kQueueDepth = {Metric::kGauge, "ampd_queue_depth", "Jobs that wait for a device."};
inline constexpr Metric kJobsQueued = {Metric::kGauge, "ampd_jobs_queued",
                                       "Jobs that wait, by label reason: what each waits for first.", "reason"};
inline constexpr Metric kJobsPaused = {Metric::kGauge, "ampd_jobs_paused",
                                       "Jobs that are paused, by label reason: requested or no_disk_space.", "reason"};
inline constexpr Metric kOldestQueued = {Metric::kGauge, "ampd_oldest_queued_seconds",
                                         "Time since the submit of the oldest job that waits; 0 without one."};
inline constexpr Metric kStateDirFree = {Metric::kGauge, "ampd_state_dir_free_bytes",
                                         "Room for the daemon in the file system of its state directory."};
inline constexpr Metric kDamagedPages = {
    Metric::kGauge, "ampd_database_damaged_pages",
    "Pages of the database's file that were found damaged when they were read, since the daemon started."};
inline constexpr Metric kWatchers = {Metric::kGauge, "ampd_watchers", "Streams that follow a job's events."};
inline constexpr Metric kWatchStoreReads = {
    Metric::kCounter, "ampd_watch_store_reads_total",
    "Reads of events that had left memory: of watchers that begin with old events or have fallen behind."};
inline constexpr Metric kStoreCommitSeconds = {Metric::kHistogram, "ampd_store_commit_seconds",
                                               "Time to commit one group of writes, fsync included."};

// Histograms of times, in seconds.
inline constexpr Metric kQueueSeconds = {Metric::kHistogram, "ampd_job_queue_seconds",
                                         "Time from a job's entry into the queue to its start on a device."};
inline constexpr Metric kStartSeconds = {
    Metric::kHistogram, "ampd_job_start_seconds",
    "Time from a job's start on a device to the end of its first training step there, once for each attempt; not of "
    "attempts that began under another run of the daemon."};
inline constexpr Metric kCheckpointWriteSeconds = {Metric::kHistogram, "ampd_checkpoint_write_seconds",
                                                   "Time to write a checkpoint."};
inline constexpr Metric kEventLagSeconds = {Metric::kHistogram, "ampd_event_lag_seconds",
                                            "Time from an event in a worker until it was durable and readable here."};
inline constexpr Metric kRpcSeconds = {
    Metric::kHistogram, "ampd_rpc_seconds",
    "Time to answer a call, by label method; of calls with one request and one answer.", "method"};
inline constexpr Metric kRpcs = {Metric::kCounter, "ampd_rpcs_total", "Calls that have ended, streams included.",
                                 "method, code"};
// By class as the configuration's call_limits names them.
inline constexpr Metric kCalls = {Metric::kGauge, "ampd_calls", "Calls under way, by label class.", "class"};
inline constexpr Metric kCallsRefused = {
    Metric::kCounter, "ampd_calls_refused_total",
    "Calls refused because too many of their class were under way (call_limits), by label class.", "class"};
inline constexpr Metric kConnectionsRefused = {
    Metric::kCounter, "ampd_connections_refused_total",
    "Connections closed for want of room, by labels port (grpc, workers: the socket of jobs' processes, or http) and "
    "reason: client (its address has too many), all (the port has), descriptors (the process has no more) or answers "
    "(too many bytes of them wait for their clients). The HTTP port closes the oldest that waits for its client.",
    "port, reason"};
inline constexpr Metric kAcceptPauses = {
    Metric::kCounter, "ampd_accept_pauses_total",
    "Times that new connections had to wait for 0.1 seconds, mostly for descriptors, by label port: as of "
    "ampd_connections_refused_total.",
    "port"};
inline constexpr Metric kHttpRequests = {
    Metric::kCounter, "ampd_http_requests_total",
    "Answers of the HTTP port, by labels route (the pattern of the path; empty: there is none) and code (HTTP's); of "
    "streams when they end.",
    "route, code"};

// Of the fleet: over all jobs, across restarts of the daemon. Work repeated after a crash counts again.
inline constexpr Metric kStepsApplied = {Metric::kCounter, kStepsAppliedCounter, "Steps that updated parameters."};
inline constexpr Metric kStepsSkipped = {Metric::kCounter, kStepsSkippedCounter,
                                         "Steps skipped because a gradient was not finite."};
inline constexpr Metric kSamples = {Metric::kCounter, kSamplesCounter, "Training samples processed."};
inline constexpr Metric kInputWait = {Metric::kCounter, kInputWaitCounter, "Time trainers waited for a batch."};
inline constexpr Metric kCheckpointBytes = {Metric::kCounter, kCheckpointBytesCounter, "Bytes of checkpoints written."};
inline constexpr Metric kEventsWritten = {Metric::kCounter, kEventsCounter, "Events in the log of all jobs."};
inline constexpr Metric kJobsSucceeded = {Metric::kCounter, kJobsSucceededCounter, "Jobs that ended in SUCCEEDED."};
inline constexpr Metric kJobsFailed = {Metric::kCounter, kJobsFailedCounter, "Jobs that ended in FAILED."};
inline constexpr Metric kJobsCancelled = {Metric::kCounter, kJobsCancelledCounter, "Jobs that ended in CANCELLED."};

// Of the fleet; the first 100 users, the others as "(other)".
inline constexpr Metric kDeviceSeconds = {
    Metric::kCounter, kDeviceSecondsCounter,
    "Time of devices by label use: useful, wasted (of steps that were lost or skipped, once that is known) or idle "
    "(held "
    "by no job), and by label user. A device that is shared counts for each job by its share.",
    "use, user"};
inline constexpr Metric kCost = {Metric::kCounter, kCostCounter,
                                 "What that time cost at the devices' prices, in US dollars, by the same labels.",
                                 "use, user"};

// Of a device.
inline constexpr Metric kDeviceUtilization = {Metric::kGauge, "ampd_device_utilization_ratio",
                                              "Share of the device in use over the last seconds, 0 to 1.", "device"};
inline constexpr Metric kDeviceMemoryUsed = {Metric::kGauge, "ampd_device_memory_used_bytes", "Memory in use.",
                                             "device"};
inline constexpr Metric kDeviceMemoryTotal = {Metric::kGauge, "ampd_device_memory_size_bytes", "Memory in all.",
                                              "device"};
inline constexpr Metric kDeviceBusy = {Metric::kGauge, "ampd_device_busy", "1 while a job holds the device, else 0.",
                                       "device"};

inline constexpr Metric kDeviceCondition = {Metric::kGauge, "ampd_device_condition",
                                            "1 for each thing that is wrong with the device, by label condition; "
                                            "label blocks_jobs says whether it keeps jobs from it.",
                                            "device, condition, blocks_jobs"};

// Of a GPU; device is its UUID. What the GPU or its driver does not tell has no series.
inline constexpr Metric kGpuInfo = {
    Metric::kGauge, "ampd_gpu_info", "Always 1. Labels tell who the GPU is.",
    "device, name, pci_bus_id, compute_capability, driver_version, cuda_driver_version"};
inline constexpr Metric kGpuMemoryUtilization = {
    Metric::kGauge, "ampd_gpu_memory_utilization_ratio",
    "Share of the last sample period in which memory was read or written, 0 to 1.", "device"};
inline constexpr Metric kGpuMemoryFree = {Metric::kGauge, "ampd_gpu_memory_free_bytes", "Memory that is free.",
                                          "device"};
inline constexpr Metric kGpuPower = {Metric::kGauge, "ampd_gpu_power_watts", "Power drawn.", "device"};
inline constexpr Metric kGpuPowerLimit = {Metric::kGauge, "ampd_gpu_power_limit_watts", "Power it may draw.", "device"};
inline constexpr Metric kGpuEnergy = {Metric::kCounter, "ampd_gpu_energy_joules_total",
                                      "Energy used since the driver was loaded.", "device"};
inline constexpr Metric kGpuTemperature = {Metric::kGauge, "ampd_gpu_temperature_celsius", "Temperature of the chip.",
                                           "device"};
inline constexpr Metric kGpuSmClock = {Metric::kGauge, "ampd_gpu_sm_clock_hertz", "Clock of the multiprocessors.",
                                       "device"};
inline constexpr Metric kGpuMemoryClock = {Metric::kGauge, "ampd_gpu_memory_clock_hertz", "Clock of the memory.",
                                           "device"};
inline constexpr Metric kGpuTensorActive = {
    Metric::kGauge, "ampd_gpu_tensor_active_ratio",
    "Share of time in which tensor pipes were active, 0 to 1; Hopper and later.", "device"};
inline constexpr Metric kGpuThrottled = {Metric::kGauge, "ampd_gpu_throttled", "1 while the clocks are held down.",
                                         "device"};
inline constexpr Metric kGpuThrottleReason = {Metric::kGauge, "ampd_gpu_throttle_reason",
                                              "1 for each thing that holds the clocks down, by label reason.",
                                              "device, reason"};
inline constexpr Metric kGpuEccErrors = {
    Metric::kCounter, "ampd_gpu_ecc_errors_total",
    "Memory errors since the driver was loaded, by label type: corrected or uncorrected.", "device, type"};
inline constexpr Metric kGpuXidErrors = {
    Metric::kCounter, "ampd_gpu_xid_errors_total",
    "Errors the driver reported since the daemon started, by labels xid and class: application or hardware.",
    "device, xid, class"};
inline constexpr Metric kGpuForeignProcesses = {Metric::kGauge, "ampd_gpu_foreign_processes",
                                                "Processes computing on the GPU that are no workers of this daemon.",
                                                "device"};

// Of a job; gone five minutes after the job's end.
inline constexpr Metric kJobLoss = {Metric::kGauge, "ampd_job_loss", "Newest training loss; NaN when none was finite.",
                                    "job_id, phase"};
inline constexpr Metric kJobLossScale = {Metric::kGauge, "ampd_job_loss_scale", "Loss scale after the newest step.",
                                         "job_id, phase"};
inline constexpr Metric kJobLearningRate = {Metric::kGauge, "ampd_job_learning_rate",
                                            "Learning rate of the newest applied step.", "job_id, phase"};
inline constexpr Metric kJobGradientNorm = {Metric::kGauge, "ampd_job_gradient_norm",
                                            "L2 norm of the unscaled gradients before clipping.", "job_id, phase"};
inline constexpr Metric kJobStepsApplied = {
    Metric::kCounter, "ampd_job_steps_applied_total",
    "Steps of the job that updated parameters, across restarts of the daemon; repeated ones count once.",
    "job_id, phase"};
inline constexpr Metric kJobStepsSkipped = {Metric::kCounter, "ampd_job_steps_skipped_total",
                                            "Steps of the job skipped because a gradient was not finite, likewise.",
                                            "job_id, phase"};
inline constexpr Metric kJobSamples = {
    Metric::kCounter, "ampd_job_samples_total",
    "Training samples of the job since the daemon started; repeated ones count again.", "job_id"};
inline constexpr Metric kJobSamplesPerSecond = {Metric::kGauge, "ampd_job_samples_per_second",
                                                "Training samples a second over the newest report.", "job_id"};
inline constexpr Metric kJobStepSeconds = {Metric::kGauge, "ampd_job_step_seconds",
                                           "Mean time of a step over the newest report, input wait included.",
                                           "job_id"};
inline constexpr Metric kJobFlopsUtilization = {
    Metric::kGauge, "ampd_job_model_flops_utilization_ratio",
    "Model FLOPs a second over the device's peak in the job's mode, 0 to 1; only where that peak is known.", "job_id"};
inline constexpr Metric kJobInputWait = {Metric::kCounter, "ampd_job_input_wait_seconds_total",
                                         "Time the job's trainer waited for a batch since the daemon started.",
                                         "job_id"};
inline constexpr Metric kJobOverflows = {
    Metric::kCounter, "ampd_job_overflows_total",
    "Skipped steps of the job since the daemon started, by labels phase, stage and kind: where the first value that "
    "was not finite stood, and whether it was inf or nan. Repeated steps count again.",
    "job_id, phase, stage, kind"};
inline constexpr Metric kJobLastProgress = {
    Metric::kGauge, "ampd_job_last_progress_timestamp_seconds",
    "When the job's newest steps ended, its worker told of more samples evaluated, or it began or went on running, "
    "whichever was last, in Unix time.",
    "job_id"};
inline constexpr Metric kJobLastCheckpoint = {
    Metric::kGauge, "ampd_job_last_checkpoint_timestamp_seconds",
    "When the job's newest checkpoint was written, or it began or went on running if that was later, in Unix time.",
    "job_id"};
inline constexpr Metric kJobCheckpointSeconds = {Metric::kGauge, "ampd_job_checkpoint_seconds",
                                                 "Time to write the job's newest checkpoint.", "job_id"};
inline constexpr Metric kJobCheckpointBytes = {Metric::kGauge, "ampd_job_checkpoint_bytes",
                                               "Size of the job's newest checkpoint.", "job_id"};
inline constexpr Metric kJobRunning = {Metric::kGauge, "ampd_job_running",
                                       "1 while the job trains, 0 while it is paused, queued again or stopping.",
                                       "job_id"};
inline constexpr Metric kJobCheckpointInterval = {
    Metric::kGauge, "ampd_job_checkpoint_interval_seconds",
    "Time between checkpoints that the job asks for; none where it asks for none by time, or measures (`bench`).",
    "job_id"};
inline constexpr Metric kJobLossScaleFloor = {Metric::kGauge, "ampd_job_loss_scale_floor",
                                              "Smallest scale that the phase's dynamic loss scaling goes to; none "
                                              "without it, 0 once the phase went on without it.",
                                              "job_id, phase"};
inline constexpr Metric kJobEvaluationLoss = {Metric::kGauge, "ampd_job_evaluation_loss",
                                              "Loss of the newest evaluation.", "job_id"};
inline constexpr Metric kJobEvaluationAccuracy = {Metric::kGauge, "ampd_job_evaluation_accuracy_ratio",
                                                  "Share of samples the newest evaluation classified rightly, 0 to 1.",
                                                  "job_id"};

inline std::vector<const Metric*> FleetCounters() {
  return {&kStepsApplied,  &kStepsSkipped,  &kSamples,    &kInputWait,    &kCheckpointBytes,
          &kEventsWritten, &kJobsSucceeded, &kJobsFailed, &kJobsCancelled};
}

inline std::vector<const Metric*> UseCounters() { return {&kDeviceSeconds, &kCost}; }

inline std::vector<const Metric*> Joined(std::vector<const Metric*> first, const std::vector<const Metric*>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// What belongs together, for people.
struct MetricGroup {
  const char* title;
  // Sentences.
  const char* about;
  std::vector<const Metric*> metrics;
};

// Every metric there is, each in one group.
inline std::vector<MetricGroup> MetricGroups() {
  return {
      {"Daemon",
       "",
       {&kBuildInfo, &kUptime, &kStateDirFree, &kDamagedPages, &kStoreCommitSeconds, &kEventLagSeconds, &kWatchers,
        &kWatchStoreReads, &kRpcs, &kRpcSeconds, &kCalls, &kCallsRefused, &kHttpRequests, &kConnectionsRefused,
        &kAcceptPauses}},
      {"Queue",
       "",
       {&kJobs, &kQueueDepth, &kJobsQueued, &kJobsPaused, &kOldestQueued, &kQueueSeconds, &kStartSeconds,
        &kCheckpointWriteSeconds}},
      {"Fleet",
       "Totals of all jobs, across restarts of the daemon. Work that is repeated after a crash counts again. The first "
       "100 users have series of their own, the others share the user \"(other)\".",
       Joined(FleetCounters(), UseCounters())},
      {"Devices", "", {&kDeviceBusy, &kDeviceUtilization, &kDeviceMemoryUsed, &kDeviceMemoryTotal, &kDeviceCondition}},
      {"GPUs",
       "The label device is the GPU's UUID. What the GPU or its driver does not tell has no series.",
       {&kGpuInfo, &kGpuMemoryUtilization, &kGpuMemoryFree, &kGpuPower, &kGpuPowerLimit, &kGpuEnergy, &kGpuTemperature,
        &kGpuSmClock, &kGpuMemoryClock, &kGpuTensorActive, &kGpuThrottled, &kGpuThrottleReason, &kGpuEccErrors,
        &kGpuXidErrors, &kGpuForeignProcesses}},
      {"Jobs",
       "Series begin with the job's first attempt and go five minutes after its end. The label phase is \"main\" where "
       "the job has one.",
       {&kJobRunning,          &kJobLoss,           &kJobEvaluationLoss,     &kJobEvaluationAccuracy,
        &kJobLossScale,        &kJobLossScaleFloor, &kJobOverflows,          &kJobLearningRate,
        &kJobGradientNorm,     &kJobStepsApplied,   &kJobStepsSkipped,       &kJobSamples,
        &kJobSamplesPerSecond, &kJobStepSeconds,    &kJobInputWait,          &kJobFlopsUtilization,
        &kJobLastProgress,     &kJobLastCheckpoint, &kJobCheckpointInterval, &kJobCheckpointSeconds,
        &kJobCheckpointBytes}},
  };
}

inline std::vector<const Metric*> AllMetrics() {
  std::vector<const Metric*> all;
  for (const MetricGroup& group : MetricGroups()) all.insert(all.end(), group.metrics.begin(), group.metrics.end());
  return all;
}

}  // namespace ampd

#endif  // AMPD_SERVER_METRICS_DEFINITIONS_H_
