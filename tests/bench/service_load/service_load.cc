// What the daemon bears: submits, watchers, idling, restarts, and what it costs a training. Prints its figures, and
// exits with 1 when one misses. Lies beside ampd and ampd-worker; needs both, and a processor or two for itself.
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "tests/bench/service_load/parts.h"
#include "tests/bench/service_load/synthetic_worker.h"

namespace ampd::load {
namespace {

absl::Status MeasureService(const Sizes& sizes, const std::string& folder, Figures* figures) {
  const DaemonOptions options{folder + "/state", ProgramFolder() + "/service_load"};
  absl::StatusOr<std::unique_ptr<LoadDaemon>> started = LoadDaemon::Start(options);
  if (!started.ok()) return started.status();
  std::unique_ptr<LoadDaemon> daemon = *std::move(started);
  const absl::StatusOr<std::string> ticking = StartTicking(daemon.get());
  if (!ticking.ok()) return ticking.status();
  // A part that cannot be measured does not keep the others from it.
  const auto part = [&](const char* name, const absl::Status& status) {
    if (!status.ok()) figures->Failed(name, std::string(status.message()));
  };
  part("submits", MeasureSubmits(sizes, options, &daemon, figures));
  if (daemon == nullptr) return absl::InternalError("no daemon after the submits");
  part("watchers", MeasureWatchers(sizes, *ticking, daemon.get(), figures));
  part("idling", MeasureIdle(sizes, *ticking, daemon.get(), figures));
  daemon->Kill();
  daemon.reset();
  part("restart", MeasureRestart(sizes, options, figures));
  return absl::OkStatus();
}

int Run(const Sizes& sizes, bool service, bool training) {
  std::string folder = (std::filesystem::temp_directory_path() / "service-load-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    std::perror("service_load: cannot make a folder");
    return 2;
  }
  Figures figures;
  if (service) {
    const absl::Status status = MeasureService(sizes, folder, &figures);
    if (!status.ok()) figures.Failed("service", std::string(status.message()));
  }
  if (training) {
    const absl::Status status = MeasureTraining(sizes, folder, &figures);
    if (!status.ok()) figures.Failed("training", std::string(status.message()));
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  std::printf("%d missed\n", figures.missed());
  return figures.missed() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ampd::load

int main(int argc, char** argv) {
  if (ampd::load::IsWorkerCommand(argc, argv)) return ampd::load::RunSyntheticWorker(argc, argv);
  CLI::App app("Measures what the daemon bears.", "service_load");
  ampd::load::Sizes sizes;
  bool no_service = false, no_training = false;
  app.add_option("--jobs", sizes.jobs, "jobs to submit")->check(CLI::Range(1, 1000000))->capture_default_str();
  app.add_option("--concurrency", sizes.concurrency, "CreateJob calls at a time")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--watchers", sizes.watchers, "watchers of one job")
      ->check(CLI::Range(1, 8000))
      ->capture_default_str();
  app.add_option("--seconds", sizes.seconds, "seconds of watching, and of idling")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
  app.add_option("--stored", sizes.stored, "jobs in the store of the daemon that starts")
      ->check(CLI::Range(1, 10000000))
      ->capture_default_str();
  app.add_option("--steps", sizes.steps, "steps of the timed training")
      ->check(CLI::Range(20, 1000000))
      ->capture_default_str();
  app.add_option("--rounds", sizes.rounds, "trainings of each kind")->check(CLI::Range(1, 100))->capture_default_str();
  app.add_flag("--no-service", no_service, "only the training");
  app.add_flag("--no-training", no_training, "without the training");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return ampd::load::Run(sizes, !no_service, !no_training);
}
