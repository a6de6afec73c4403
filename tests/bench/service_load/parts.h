// What the program measures, one part after another.
#ifndef AMPD_TESTS_BENCH_SERVICE_LOAD_PARTS_H_
#define AMPD_TESTS_BENCH_SERVICE_LOAD_PARTS_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/bench/service_load/figures.h"
#include "tests/bench/service_load/load_daemon.h"

namespace ampd::load {

struct Sizes {
  // Jobs submitted, and how many CreateJob calls are under way at a time. Some 64 take all of two processors, clients
  // and daemon together, at five times the rate asked for; what else is called then measures the machine's queue.
  int jobs = 10000;
  int concurrency = 16;
  int watchers = 1000;
  // Of the same job, beside them, on one connection: they never read.
  int dead_watchers = 100;
  // Of watching, seconds; also of looking at the idle daemon.
  int seconds = 10;
  // Jobs in the store that a daemon starts with.
  int stored = 100000;
  // Steps of the training that is timed, and how often it is repeated.
  int steps = 600;
  int rounds = 20;
};

// The id of a job that sends ten events a second, once it runs; it holds the only device.
absl::StatusOr<std::string> StartTicking(LoadDaemon* daemon);

// Submits jobs while somebody asks for them, lists pages of a short and a long queue, kills the daemon, and looks
// whether every acknowledged job is there. `daemon` is a new one on the same state in the end; `short_page` is the time
// of a page of the short queue, seconds.
absl::Status MeasureSubmits(const Sizes& sizes, const DaemonOptions& options, std::unique_ptr<LoadDaemon>* daemon,
                            double* short_page, Figures* figures);

// The times of pages where there are `jobs`, against one of few.
absl::Status MeasurePages(int jobs, double short_page, LoadDaemon* daemon, Figures* figures);

// Many watchers of the ticking job.
absl::Status MeasureWatchers(const Sizes& sizes, const std::string& ticking, LoadDaemon* daemon, Figures* figures);

// The daemon while nobody asks anything: the ticking job is ended, another holds the device and is silent.
absl::Status MeasureIdle(const Sizes& sizes, const std::string& ticking, LoadDaemon* daemon, Figures* figures);

// Fills the store of a daemon that is gone, and times the next one's start and its pages.
absl::Status MeasureRestart(const Sizes& sizes, const DaemonOptions& options, double short_page, Figures* figures);

// Whether this process is to train alone, without daemon and worker, and that training: argv is the program's. Prints
// its pace, steps a second; returns the exit status.
bool IsEngineCommand(int argc, char** argv);
int RunEngine(char** argv);

// The same training in a process of the engine alone, and through the daemon and the real worker.
absl::Status MeasureTraining(const Sizes& sizes, const std::string& folder, Figures* figures);

}  // namespace ampd::load

#endif  // AMPD_TESTS_BENCH_SERVICE_LOAD_PARTS_H_
