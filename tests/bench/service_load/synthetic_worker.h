// This program as the worker of a job: it plans with the real one, and trains nothing.
#ifndef AMPD_TESTS_BENCH_SERVICE_LOAD_SYNTHETIC_WORKER_H_
#define AMPD_TESTS_BENCH_SERVICE_LOAD_SYNTHETIC_WORKER_H_

namespace ampd::load {

// Jobs of this name wait until they are told to stop; of the other they send an event every 100 ms as well.
inline constexpr char kIdleJob[] = "idle";
inline constexpr char kTickingJob[] = "ticking";

// Whether this program was started as a worker.
bool IsWorkerCommand(int argc, char** argv);
// Runs as one; the exit code.
int RunSyntheticWorker(int argc, char** argv);

}  // namespace ampd::load

#endif  // AMPD_TESTS_BENCH_SERVICE_LOAD_SYNTHETIC_WORKER_H_
