// What the daemon bears: submits, watchers, idling, restarts, and what it costs a training. Prints its figures, and
// exits with 1 when one misses. Lies beside ampd and ampd-worker; needs both, and a processor or two for itself.
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/bench/service_load/parts.h"
#include "tests/bench/service_load/synthetic_worker.h"

namespace ampd::load {
namespace {

struct Options {
  Sizes sizes;
  bool service = true;
  bool training = true;
  // Of everything.
  int repeats = 1;
  // Where the report goes; empty: none.
  std::string report;
};

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
  double short_page = 0;
  part("submits", MeasureSubmits(sizes, options, &daemon, &short_page, figures));
  if (daemon == nullptr) return absl::InternalError("no daemon after the submits");
  part("watchers", MeasureWatchers(sizes, *ticking, daemon.get(), figures));
  part("idling", MeasureIdle(sizes, *ticking, daemon.get(), figures));
  daemon->Kill();
  daemon.reset();
  part("restart", MeasureRestart(sizes, options, short_page, figures));
  return absl::OkStatus();
}

void Repeat(const Options& options, const std::string& folder, Figures* figures) {
  if (options.service) {
    const absl::Status status = MeasureService(options.sizes, folder, figures);
    if (!status.ok()) figures->Failed("service", std::string(status.message()));
  }
  if (options.training) {
    const absl::Status status = MeasureTraining(options.sizes, folder, figures);
    if (!status.ok()) figures->Failed("training", std::string(status.message()));
  }
}

int Run(const Options& options) {
  std::string folder = (std::filesystem::temp_directory_path() / "service-load-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    std::perror("service_load: cannot make a folder");
    return 2;
  }
  Figures figures;
  for (int i = 0; i < options.repeats; ++i) {
    const std::string own = absl::StrCat(folder, "/", i);
    std::filesystem::create_directory(own);
    Repeat(options, own, &figures);
    std::error_code ignored;
    std::filesystem::remove_all(own, ignored);
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  figures.PrintSummary();
  if (!options.report.empty()) {
    const std::string how =
        absl::StrCat("`service_load --repeats ", options.repeats, "`: the median over the repeats, and their range.");
    if (const absl::Status status = figures.WriteReport(options.report, how); !status.ok()) {
      std::fprintf(stderr, "service_load: %s\n", std::string(status.message()).c_str());
      return 2;
    }
  }
  return figures.missed() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ampd::load

int main(int argc, char** argv) {
  if (ampd::load::IsWorkerCommand(argc, argv)) return ampd::load::RunSyntheticWorker(argc, argv);
  if (ampd::load::IsEngineCommand(argc, argv)) return ampd::load::RunEngine(argv);
  CLI::App app("Measures what the daemon bears.", "service_load");
  ampd::load::Options options;
  ampd::load::Sizes& sizes = options.sizes;
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
  app.add_option("--dead-watchers", sizes.dead_watchers, "watchers beside them that never read")
      ->check(CLI::Range(0, 2000))
      ->capture_default_str();
  app.add_option("--repeats", options.repeats, "measurements of everything")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--report", options.report, "file for a table of the figures (Markdown)");
  app.add_flag("!--no-service", options.service, "only the training");
  app.add_flag("!--no-training", options.training, "without the training");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return ampd::load::Run(options);
}
