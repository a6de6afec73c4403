#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/core/status.h"
#include "engine/train/trainer.h"
#include "proto/spec/resolve.h"
#include "tests/bench/service_load/parts.h"

namespace ampd::load {
namespace {

constexpr int kThreads = 1;
constexpr char kEngineCommand[] = "engine-alone";

double SecondsOf(const google::protobuf::Timestamp& time) {
  return static_cast<double>(time.seconds()) + 1e-9 * time.nanos();
}

// Steps a second between two reports of a training: the start, which plans and loads, is none of it.
class Pace {
 public:
  explicit Pace(int64_t steps) : begin_(steps / 10) {}
  void Add(const v1::JobEvent& event) {
    if (!event.has_step() || event.step().last_step() < begin_) return;
    const std::pair<int64_t, double> report = {event.step().last_step(), SecondsOf(event.time())};
    if (first_.first == 0) first_ = report;
    last_ = report;
  }
  double StepsPerSecond() const {
    return static_cast<double>(last_.first - first_.first) / (last_.second - first_.second);
  }

 private:
  const int64_t begin_;
  std::pair<int64_t, double> first_ = {0, 0};
  std::pair<int64_t, double> last_ = {0, 0};
};

class PaceObserver final : public train::TrainerObserver {
 public:
  explicit PaceObserver(int64_t steps) : pace(steps) {}
  absl::Status OnEvent(v1::JobEvent event) override {
    pace.Add(event);
    return absl::OkStatus();
  }
  Pace pace;
};

v1::JobSpec TrainingSpec(int steps) {
  v1::JobSpec spec = JobNamed("timed");
  spec.mutable_train()->set_steps(steps);
  // Threads that wait for each other tell more of what else the machine does than of the service.
  spec.mutable_resources()->set_cpu_threads(kThreads);
  return spec;
}

absl::StatusOr<double> Train(int steps, const std::string& folder) {
  AMPD_ASSIGN_OR_RETURN(const ResolvedJobSpec spec, ResolveJobSpec(TrainingSpec(steps)));
  train::TrainerOptions options;
  options.checkpoint_dir = folder;
  options.threads = kThreads;
  PaceObserver observer(steps);
  AMPD_ASSIGN_OR_RETURN(const std::unique_ptr<train::Trainer> trainer,
                        train::Trainer::Create(spec, options, &observer));
  AMPD_RETURN_IF_ERROR(trainer->Run().status());
  return observer.pace.StepsPerSecond();
}

// In a process of its own, as the worker's training is: in one that trained before it is faster by some percent.
absl::StatusOr<double> EngineAlone(const Sizes& sizes, const std::string& folder) {
  int out[2];
  if (pipe(out) != 0) return absl::ErrnoToStatus(errno, "no pipe");
  const UniqueFd ours(out[0]);
  UniqueFd theirs(out[1]);
  const SpawnOptions spawn{
      .argv = {ProgramFolder() + "/service_load", kEngineCommand, folder, absl::StrCat(sizes.steps)},
      .environment = ScrubbedEnvironment(),
      .stdout_fd = theirs.get()};
  AMPD_ASSIGN_OR_RETURN(ProcessHandle process, Spawn(spawn));
  theirs.Reset();
  std::string text;
  char buffer[256];
  for (ssize_t n; (n = read(ours.get(), buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<size_t>(n));
  process.Reap();
  double steps_per_second = 0;
  if (!absl::SimpleAtod(text, &steps_per_second)) {
    return absl::InternalError(absl::StrCat("the engine alone did not tell its pace: ", text));
  }
  return steps_per_second;
}

absl::StatusOr<double> ThroughDaemon(const Sizes& sizes, LoadDaemon* daemon) {
  v1::CreateJobRequest request;
  *request.mutable_spec() = TrainingSpec(sizes.steps);
  v1::Job job;
  grpc::ClientContext creating;
  const grpc::Status created = daemon->stub()->CreateJob(&creating, request, &job);
  if (!created.ok()) return absl::UnavailableError(created.error_message());
  v1::WatchJobRequest watch;
  watch.set_job_id(job.id());
  grpc::ClientContext watching;
  const auto reader = daemon->stub()->WatchJob(&watching, watch);
  Pace pace(sizes.steps);
  v1::Job::State state = v1::Job::STATE_UNSPECIFIED;
  for (v1::JobEvent event; reader->Read(&event);) {
    pace.Add(event);
    if (event.has_state_change()) state = event.state_change().to();
  }
  if (const grpc::Status end = reader->Finish(); !end.ok()) return absl::UnavailableError(end.error_message());
  if (state != v1::Job::SUCCEEDED) return absl::InternalError(absl::StrCat("job ", job.id(), " did not succeed"));
  return pace.StepsPerSecond();
}

}  // namespace

bool IsEngineCommand(int argc, char** argv) { return argc == 4 && argv[1] == absl::string_view(kEngineCommand); }

int RunEngine(char** argv) {
  int steps = 0;
  if (!absl::SimpleAtoi(argv[3], &steps)) return 2;
  const absl::StatusOr<double> pace = Train(steps, argv[2]);
  if (!pace.ok()) {
    std::fprintf(stderr, "service_load: %s\n", std::string(pace.status().message()).c_str());
    return 1;
  }
  std::printf("%.17g\n", *pace);
  return 0;
}

// In turn, so that what else the machine does meets both alike.
absl::Status MeasureTraining(const Sizes& sizes, const std::string& folder, Figures* figures) {
  AMPD_ASSIGN_OR_RETURN(const std::unique_ptr<LoadDaemon> daemon,
                        LoadDaemon::Start({folder + "/training", ProgramFolder() + "/ampd-worker"}));
  std::vector<double> alone, through;
  for (int round = 0; round < sizes.rounds; ++round) {
    AMPD_ASSIGN_OR_RETURN(const double engine, EngineAlone(sizes, absl::StrCat(folder, "/alone-", round)));
    AMPD_ASSIGN_OR_RETURN(const double service, ThroughDaemon(sizes, daemon.get()));
    alone.push_back(engine);
    through.push_back(service);
  }
  std::vector<double> ratios;
  for (size_t i = 0; i < alone.size(); ++i) ratios.push_back(through[i] / alone[i]);
  figures->Note("engine alone, median of the rounds", Median(alone), "steps/s");
  figures->Note("through daemon and worker, median of the rounds", Median(through), "steps/s");
  // Of neighbours in time, as the machine changes under both; the fastest rounds are two single ones of many.
  figures->AtLeast("training through daemon and worker, of the engine alone", Median(ratios), 0.98, "");
  figures->Note("the fastest round of each, through over alone", Quantile(through, 1) / Quantile(alone, 1), "");
  return absl::OkStatus();
}

}  // namespace ampd::load
