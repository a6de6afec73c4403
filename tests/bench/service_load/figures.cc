#include "tests/bench/service_load/figures.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace ampd::load {
namespace {

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (absl::StartsWith(line, "model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

}  // namespace

double Quantile(std::vector<double> samples, double share) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const auto rank = static_cast<size_t>(share * static_cast<double>(samples.size()));
  return samples[std::min(rank, samples.size() - 1)];
}

double Median(std::vector<double> samples) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const size_t middle = samples.size() / 2;
  return samples.size() % 2 == 1 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
}

bool Figures::Figure::Holds(double value) const {
  if (relation == Relation::kAtLeast) return value >= limit;
  return relation == Relation::kNone || value < limit;
}

std::string Figures::Figure::Asked() const {
  if (relation == Relation::kNone) return "";
  return absl::StrFormat("%s %g%s%s", relation == Relation::kAtLeast ? ">=" : "<", limit, unit.empty() ? "" : " ",
                         unit);
}

void Figures::AtLeast(const std::string& name, double value, double limit, const std::string& unit) {
  Add({name, unit, Relation::kAtLeast, limit, {}}, value);
}

void Figures::Below(const std::string& name, double value, double limit, const std::string& unit) {
  Add({name, unit, Relation::kBelow, limit, {}}, value);
}

void Figures::Note(const std::string& name, double value, const std::string& unit) { Add({name, unit}, value); }

void Figures::Add(const Figure& figure, double value) {
  auto it = std::find_if(figures_.begin(), figures_.end(), [&](const Figure& f) { return f.name == figure.name; });
  if (it == figures_.end()) it = figures_.insert(it, figure);
  it->values.push_back(value);
  const char* mark = figure.relation == Relation::kNone ? "    " : figure.Holds(value) ? "ok  " : "MISS";
  absl::PrintF("%s  %-62s %12.4g %s (%s)\n", mark, figure.name, value, figure.unit, figure.Asked());
  std::fflush(stdout);
}

void Figures::Failed(const std::string& name, const std::string& why) {
  failed_.push_back(absl::StrCat(name, ": ", why));
  absl::PrintF("MISS  %-62s %s\n", name, why);
  std::fflush(stdout);
}

int Figures::missed() const {
  const auto misses = std::count_if(figures_.begin(), figures_.end(), [](const Figure& f) { return !f.met(); });
  return static_cast<int>(misses) + static_cast<int>(failed_.size());
}

void Figures::PrintSummary() const {
  absl::PrintF("\n%-68s %12s %12s %12s\n", "", "median", "lowest", "highest");
  for (const Figure& f : figures_) {
    absl::PrintF("%s  %-62s %12.4g %12.4g %12.4g %s\n", f.met() ? "ok  " : "MISS", f.name, Median(f.values),
                 Quantile(f.values, 0), Quantile(f.values, 1), f.Asked());
  }
  absl::PrintF("%d missed\n", missed());
}

absl::Status Figures::WriteReport(const std::string& path, const std::string& how) const {
  std::ofstream file(path);
  file << absl::StrFormat("# The service under load\n\n%s, %s, %d cores. %s\n\n",
                          absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone()), ProcessorName(),
                          static_cast<int>(std::thread::hardware_concurrency()), how);
  file << "| figure | median | lowest-highest | asked | |\n|---|---|---|---|---|\n";
  for (const Figure& f : figures_) {
    const char* verdict = f.relation == Relation::kNone ? "" : f.met() ? "met" : "MISSED";
    file << absl::StrFormat("| %s | %.4g%s%s | %.4g-%.4g | %s | %s |\n", f.name, Median(f.values),
                            f.unit.empty() ? "" : " ", f.unit, Quantile(f.values, 0), Quantile(f.values, 1), f.Asked(),
                            verdict);
  }
  for (const std::string& what : failed_) file << "\nNot measured: " << what << "\n";
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

}  // namespace ampd::load
